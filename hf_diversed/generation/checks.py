"""Calls that are not supported. `REFUSED` lists all of them; `refuse` raises an error before any forward pass.

A condition receives a call: a `Call`, or before transformers prepares the call, an object with some of its attributes.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import support
from hf_diversed.generation.candidates import DFLASH, MTP, OWN, SHARED_STATES
from hf_diversed.verifiers.base import SETTINGS, Verifier, read_integer


# Settings of a head that calls may change: names as arguments and in generation configs, and in `DiversedVerifier`.
HEAD_SETTINGS = {f"diversed_{name}": name for name in SETTINGS}
# Settings that select a source of draft tokens other than a draft model.
DRAFT_MODES = ("prompt_lookup_num_tokens", "use_mtp")
# Tokenizers and multimodal processors also return these for plain text; all zeros means text only.
TEXT_MARKERS = {"token_type_ids", "mm_token_type_ids"}
# Inputs that are used, and those without effect on the ids.
_TEXT_INPUTS = {"attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_TEXT_INPUTS |= {"output_attentions", "output_hidden_states"}
_OTHER_CACHES = ("paged", "offloaded", "offloaded_static", "quantized")
# Larger differences of vocabulary sizes (this, and 1%) are not padding, but different tokenizers.
_LARGEST_PADDING = 512
# The first releases that have been tested. Before 5.23, MTP and DFlash return other logits than they sample from.
_FIRST_TESTED = {MTP: (5, 23), DFLASH: (5, 23), SHARED_STATES: (5, 24)}


class Refusal(NamedTuple):
    """One kind of call that is not supported.

    Attributes:
        condition: returns a true value for such a call: the field `found` of the message, or a dict of fields. It may
            rely on the conditions before it.
        message: what is wrong, what was given, what is allowed, and what to do; a format string.
        error: type of the error.
        early: whether the call must be refused before transformers prepares it, which would change or reject it.
    """

    condition: Callable[[Any], Any]
    message: str
    error: type[Exception] = ValueError
    early: bool = False


def refuse(call: Any, refusals: dict[str, Refusal]) -> None:
    """Raise the error of the first refusal whose condition holds."""
    for refusal in refusals.values():
        if found := refusal.condition(call):
            fields = found if isinstance(found, dict) else {"found": found}
            raise refusal.error(refusal.message.format(call=call, **fields))


def is_set(value: object) -> bool:
    """Return whether a setting is given. None and False are not; 0 is, and a later check raises an error."""
    return value is not None and value is not False


def _unused_arguments(call: Any) -> dict[str, str] | None:
    settings = [name for name in call.added if name in HEAD_SETTINGS]
    names = settings or [name for name, value in call.added.items() if value is not False]
    needed = "a head: pass diversed_head=" if settings else "a verifier: pass diversed_head= or verifier="
    return {"names": ", ".join(names), "needed": needed} if names else None


# Arguments of the library, `call.added`, in a call without head and verifier.
WITHOUT_VERIFIER = {
    "arguments without verifier": Refusal(_unused_arguments, "{names} requires {needed} as well."),
}


def _of_models(find: Callable[[PreTrainedModel], Any]) -> Callable[[Any], dict[str, Any] | None]:
    """Return a condition that holds if `find` returns a true value for one of the models of a call."""

    def condition(call: Any) -> dict[str, Any] | None:
        for role, model in call.models:
            if found := find(model):
                return {"role": role, "name": type(support.base_model(model)).__name__, "found": found}
        return None

    return condition


def _unmasked_attention(model: PreTrainedModel) -> str | None:
    implementation = support.attention_implementation(model)
    return None if implementation in support.MASKED_ATTENTION else repr(implementation)


MODELS = {
    "other model": Refusal(
        _of_models(lambda model: not isinstance(support.base_model(model), PreTrainedModel)),
        "the {role} must be a model of transformers (or a PEFT model around one), got {name}; load it with "
        "AutoModelForCausalLM.from_pretrained.",
        error=TypeError,
        early=True,
    ),
    # The encoder of an encoder-decoder model would run.
    "no rollback": Refusal(_of_models(support.cannot_roll_back), "the {role} {name} {found}", early=True),
    "attention": Refusal(
        _of_models(_unmasked_attention),
        "the {role} {name} uses attn_implementation={found}, which does not support 4D masks; load it with "
        'attn_implementation="sdpa" (or "eager").',
        early=True,
    ),
    "gradient checkpointing": Refusal(
        _of_models(support.recomputes_activations),
        "the {role} {name} is in training mode with gradient checkpointing, which drops the cache; call model.eval() "
        "or model.gradient_checkpointing_disable() first.",
    ),
    "prompt learning": Refusal(
        _of_models(support.prompt_learning_adapter),
        "the {role} {name} has a prompt-learning adapter ({found}), whose virtual tokens are not supported; use an "
        "adapter without them, such as LoRA.",
    ),
    "adapters per row": Refusal(
        _of_models(support.peft_inputs),
        "the {role} {name} has an adapter whose use depends on the row or the position ({found}), which is not "
        "supported with a verifier; select one adapter with set_adapter.",
    ),
}


# The arguments from which the verifier of a call is built.
VERIFIERS = {
    "head and verifier": Refusal(
        lambda call: call.diversed_head is not None and call.verifier is not None,
        "diversed_head= and verifier= are mutually exclusive; pass only one of them.",
    ),
    "neither head nor verifier": Refusal(
        lambda call: call.diversed_head is None and call.verifier is None,
        "diversed_decoding needs verifier= or diversed_head=; see hf_diversed.VERIFIERS.",
        error=TypeError,
    ),
    "no verifier": Refusal(
        lambda call: not isinstance(call.verifier, Verifier | str | None) and type(call.verifier).__name__,
        'verifier must be a Verifier or a name such as "lenience:0.3", got {found}; pass heads as diversed_head=.',
        error=TypeError,
    ),
    "settings of a head": Refusal(
        lambda call: (
            call.diversed_head is None
            and " and ".join(name for name in HEAD_SETTINGS if getattr(call, name) is not None)
        ),
        "{found} can only be used with a head: pass diversed_head=. Bounds of a fixed weight are in its name: "
        'verifier="static:weight:max_bias:max_ratio".',
    ),
}


def _other_token(call: Any) -> dict[str, Any] | None:
    """Return an id that stands for two tokens, unless it is special: chat models often rename those."""
    target, draft = call.tokenizer, call.assistant_tokenizer
    if target is None or draft is None or target is draft:
        return None
    by_id, special = {index: token for token, index in draft.get_vocab().items()}, _special_ids(target, draft)
    for token, index in target.get_vocab().items():
        if by_id.get(index, token) != token and index not in special:
            return {"id": index, "token": token, "other": by_id[index]}
    return None


def _special_ids(*tokenizers: PreTrainedTokenizerBase) -> set[int]:
    """Return all special ids, with added tokens that `all_special_ids` leaves out."""
    ids: set[int] = set()
    for tokenizer in tokenizers:
        ids.update(tokenizer.all_special_ids)
        added = getattr(tokenizer, "added_tokens_decoder", None)
        if isinstance(added, dict):  # a method in MistralCommonBackend
            ids.update(index for index, token in added.items() if token.special)
    return ids


TOKENIZERS = Refusal(
    _other_token,
    "target and draft model have different tokenizers: id {id} is {token!r} for the target and {other!r} for the "
    "draft model. Use a draft model with the target's tokenizer, or transformers' assisted generation, which is "
    "lossless, without a verifier.",
)


def check_tokenizers(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if the tokenizers of a pair differ."""
    refuse(SimpleNamespace(tokenizer=target, assistant_tokenizer=draft), {"tokenizers": TOKENIZERS})


# Arguments of `generate` that transformers does not pass to the loop.
GENERATE = {
    "custom_generate": Refusal(
        lambda call: call.custom_generate is not None and repr(call.custom_generate),
        "custom_generate={found} cannot be combined with diversed_head= or verifier=; pass one.",
    ),
    "synced_gpus": Refusal(
        lambda call: call.synced_gpus,
        "synced_gpus=True is not supported with a verifier: processes need different numbers of rounds.",
    ),
    "stop strings": Refusal(
        lambda call: call.generation_config.stop_strings is not None and call.tokenizer is None,
        "stop_strings require the tokenizer: pass tokenizer=.",
    ),
    "tokenizers": TOKENIZERS,
}


def _unused_input(call: Any) -> str | None:
    """Return the name of a model input that the loop does not pass on."""
    for name, value in call.model_kwargs.items():
        if value is None or name in _TEXT_INPUTS or name in support.CACHE_NAMES:
            continue
        if name in TEXT_MARKERS and not support.reads_token_types(call.model) and not torch.as_tensor(value).any():
            continue
        if name == "mm_encoder_outputs" and all(output is None for output in value.values()):
            continue
        return name
    return None


def _not_a_tensor(call: Any) -> dict[str, str] | None:
    values = {"input_ids": call.input_ids, **call.model_kwargs}
    for name in ("input_ids", "attention_mask", "position_ids"):
        if not isinstance(values.get(name), torch.Tensor | None):
            return {"name": name, "found": type(values[name]).__name__}
    return None


def shapes(call: Any) -> str | None:
    """Return what is wrong with the shapes of the prompts, their mask and their positions."""
    input_ids, mask = call.input_ids, call.model_kwargs.get("attention_mask")
    if input_ids is None:  # transformers creates the first token
        return None
    expected = tuple(input_ids.shape)
    if input_ids.ndim != 2 or 0 in expected:
        return f"input_ids must be [batch, length] with at least one row and one id, got {list(expected)}."
    for name in ("attention_mask", "position_ids"):
        value = call.model_kwargs.get(name)
        if value is None or tuple(value.shape) == expected:
            continue
        # `generate` creates positions of one row, or of one plane per axis for multimodal models.
        fits = value.ndim in (2, 3) and tuple(value.shape[-2:]) in (expected, (1, expected[1]))
        if name == "attention_mask" or not fits:
            return (
                f"{name} must have the shape of input_ids, {list(expected)}, got {list(value.shape)}; pass the "
                "tokenizer's output unchanged."
            )
    if mask is not None and (empty := (mask == 0).all(dim=-1)).any():
        return (
            f"every prompt must have a token, but attention_mask is 0 in all of row {int(empty.long().argmax())}; "
            "remove empty prompts, or start them with a BOS token."
        )
    return None


def vocabularies(call: Any) -> str | None:
    """Return why the draft model does not know the ids of a call."""
    model, draft = call.model, call.draft
    if draft is None:
        return None
    size, other = support.vocab_size(model), support.vocab_size(draft)
    if abs(size - other) > max(_LARGEST_PADDING, max(size, other) // 100):
        return (
            f"target and draft model have vocabularies of {size} and {other} ids, which is more than padding. Use a "
            "draft model from the same family."
        )
    return None


def sources(call: Any) -> str | None:
    """Return why the candidate generator `call.source`, of transformers or of the caller, does not support a call."""
    source, config, own = call.source, call.generation_config, call.own_generators
    if source is None:
        return None
    others = {  # other sources of draft tokens that the call also selects
        "assistant_model": call.assistant_model if source in (OWN, MTP) else None,
        MTP: config.use_mtp if source != MTP else None,
        f"speculation_type={config.speculation_type!r}": config.speculation_type if source != DFLASH else None,
        f"prompt_lookup_num_tokens={config.prompt_lookup_num_tokens!r}": config.prompt_lookup_num_tokens,
    }
    if other := next((name for name, value in others.items() if is_set(value)), None):
        return f"{other} and {source} are two sources of draft tokens; pass only one."
    if source == MTP and not getattr(call.model.config.get_text_config(), "num_mtp_layers", None):
        return (
            f"{MTP} needs a model with multi-token prediction layers, which {type(call.model).__name__} lacks "
            "(num_mtp_layers in its config); pass assistant_model= instead."
        )
    if source == DFLASH and getattr(getattr(call.assistant_model, "config", None), "block_size", None) is None:
        return (
            f"speculation_type={config.speculation_type!r} needs a DFlash draft model (block_size in its config) as "
            f"assistant_model=, got {type(call.assistant_model).__name__}."
        )
    needed = _FIRST_TESTED.get(source, (0,))
    if needed > support.RELEASE:
        return (
            f"{source} needs transformers {'.'.join(map(str, needed))} or newer: update transformers, or use another "
            "source of draft tokens."
        )
    count, mask = len(call.input_ids), call.model_kwargs.get("attention_mask")
    reads_target = source != OWN or any(each.requires_model_outputs for each in own)
    if not reads_target and len(own) != count:
        return f"{source} must have one generator per row: pass a list of {count}, got {len(own)}."
    if reads_target and count > 1:
        return f"{source} drafts for a single row: batch size must be 1, got {count}; decode the prompts one by one."
    if reads_target and mask is not None and not mask.all():
        return f"{source} does not support padding: remove the padding of the prompt."
    if reads_target and support.recurrent_states(call.model):
        return f"{source} is not supported for targets with recurrent states; pass assistant_model=."
    if call.verifier.needs_raw_logits and source != SHARED_STATES and call.logits_processor:
        names = ", ".join(type(each).__name__ for each in call.logits_processor)
        return (
            f"{call.verifier!r} needs the draft model's logits before any processor, which {source} does not return; "
            f"drop {names}, or use another verifier."
        )
    return None


def _refused_processor(call: Any) -> dict[str, str] | None:
    for processor in call.logits_processor:
        for refused, reason in support.REFUSED_PROCESSORS.items():
            if isinstance(processor, refused):
                return {"name": type(processor).__name__, "reason": reason}
    return None


def _changes_rotation(call: Any) -> dict[str, Any] | None:
    """Hold if the target's rotary frequencies can change inside a call.

    Longrope has two sets of frequencies, so prompts beyond the limit are supported; dynamic NTK has others for every
    length.
    """
    found = support.rotary_limit(call.model)
    if found is None or call.max_length <= found[0]:
        return None
    limit, kind = found
    if kind == "longrope" and int(call.positions[:, -1].min()) > limit:  # the prefill leaves out the last token
        return None
    longer = f", or pass prompts of more than {limit + 1} ids" if kind == "longrope" else ""
    name = type(support.base_model(call.model)).__name__
    return {"name": name, "limit": limit, "kind": kind, "longer": longer}


# Modes of transformers, and what to do instead.
_OTHER_MODES = {
    "assistant_ensemble_weight": 'pass verifier="static:{}" instead',
    "penalty_alpha": "contrastive search is another decoding method; remove the verifier or pass penalty_alpha=None",
    "dola_layers": "DoLa is another decoding method; remove the verifier or pass dola_layers=None",
    "force_words_ids": "this is constrained beam search; remove the verifier or pass force_words_ids=None",
    "constraints": "this is constrained beam search; remove the verifier or pass constraints=None",
    "assistant_early_exit": "pass assistant_model= instead",
}


def _other_mode(call: Any) -> dict[str, Any] | None:
    for name, advice in _OTHER_MODES.items():
        if is_set(value := getattr(call.generation_config, name)):
            return {"name": name, "value": value, "advice": advice.format(value)}
    return None


CALLS = {
    "cache_implementation": Refusal(
        lambda call: call.generation_config.cache_implementation in _OTHER_CACHES,
        "cache_implementation={call.generation_config.cache_implementation!r} is not supported with a verifier: rows "
        "of different lengths need this library's cache, which cannot be paged, offloaded or quantized. Pass None.",
        early=True,
    ),
    "the caller's cache": Refusal(
        lambda call: call.has_user_cache,
        "the caller's cache (past_key_values= or cache=) is not supported: rows of different lengths need this "
        "library's cache. Pass the whole prompt as input_ids.",
        early=True,
    ),
    "other inputs": Refusal(
        _unused_input,
        "the model input {found!r} is not supported: verifiers support ids, masks and positions of text only. Remove "
        "it.",
        early=True,
    ),
    "inputs without tensors": Refusal(
        _not_a_tensor,
        '{name} must be a tensor, got {found}; call the tokenizer with return_tensors="pt" and pass **inputs to '
        "generate.",
        error=TypeError,
        early=True,
    ),
    "shapes": Refusal(shapes, "{found}", early=True),
    "beam search": Refusal(
        lambda call: (call.generation_config.num_beams or 1) > 1,
        "num_beams must be 1 with a verifier, got {call.generation_config.num_beams}; beam search is not supported.",
    ),
    "other modes": Refusal(_other_mode, "{name}={value!r} cannot be combined with a verifier: {advice}."),
    "no source of draft tokens": Refusal(
        lambda call: (
            call.draft is None and call.source is None and call.generation_config.prompt_lookup_num_tokens is None
        ),
        "a verifier or diversed_head= needs draft tokens to verify: pass assistant_model= (without the hook, bind it "
        "with functools.partial: `generate` does not pass it on), prompt_lookup_num_tokens=, use_mtp=True or "
        "candidate_generator=.",
    ),
    "source of draft tokens": Refusal(sources, "{found}"),
    "copies before a recurrent draft model": Refusal(
        lambda call: (
            call.draft is not None
            and call.generation_config.prompt_lookup_num_tokens is not None
            and support.recurrent_states(call.draft)
        ),
        "assistant_model and prompt_lookup_num_tokens cannot be combined: the draft model has recurrent states, which "
        "cannot skip copied tokens; pass only one.",
    ),
    "vocabularies": Refusal(vocabularies, "{found}"),
    "processors": Refusal(
        _refused_processor,
        "{name} cannot be used with a verifier: {reason}. Drop one of them.",
    ),
    "positions of the batch": Refusal(
        lambda call: call.batch_size > 1 and _of_models(support.needs_equal_rows)(call),
        "the {role} {name} {found}, which is wrong for rows of different lengths: batch size must be 1, got "
        "{call.batch_size}; decode the prompts one by one.",
    ),
    "rotary frequencies": Refusal(
        _changes_rotation,
        "the target {name} changes its rotary frequencies at {limit} ids (type {kind!r}), and the call can reach "
        "{call.max_length}; lower max_new_tokens{longer}.",
    ),
    "streamer for a batch": Refusal(
        lambda call: call.streamer is not None and call.batch_size > 1,
        "streamers require batch size 1, got {call.batch_size}, because rows have different lengths.",
    ),
    "records without dict": Refusal(
        lambda call: call.output_token_records and not call.generation_config.return_dict_in_generate,
        "output_token_records=True needs return_dict_in_generate=True to return them.",
    ),
    "number of draft tokens": Refusal(
        lambda call: call.requested_gamma is not None and (read_integer(call.requested_gamma) or 0) < 1,
        "num_assistant_tokens must be an integer >= 1, got {call.requested_gamma!r}; 3 to 8 suit most pairs.",
    ),
    "confidence without draft model": Refusal(
        lambda call: call.verifier.needs_draft_confidence and call.context.draft_hidden_size is None,
        "{call.verifier!r} needs probabilities of a draft model for each draft token, which prompt lookup "
        "(prompt_lookup_num_tokens) and greedy candidate generators lack; use a verifier that needs only p and the "
        "draft token, or only an assistant_model.",
    ),
}

ATTACHED = MODELS | VERIFIERS
REFUSED = WITHOUT_VERIFIER | GENERATE | MODELS | VERIFIERS | CALLS
BEFORE_PREPARATION = GENERATE | {name: each for name, each in (MODELS | CALLS).items() if each.early}
