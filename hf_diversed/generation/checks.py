"""Checks of models, arguments and inputs before any forward pass."""

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import support
from hf_diversed.blocks import DecodingContext
from hf_diversed.generation.options import CONFIDENCE, CONSTANT
from hf_diversed.generation.request import Request, check_head_and_verifier, is_set
from hf_diversed.verifiers.base import Verifier, check_range, read_integer


logger = support.get_logger(__name__)
# Inputs that are used, and those without effect on the ids; `check_config` refuses outputs that would be returned.
_TEXT_INPUTS = {"attention_mask", "position_ids", "use_cache", "logits_to_keep"}
_TEXT_INPUTS |= {"output_attentions", "output_hidden_states"}
# Larger differences of vocabulary sizes (this, and 1%) are not padding, but different tokenizers.
_LARGEST_PADDING = 512
EARLY_EXIT = "assistant_early_exit is not supported with a verifier; pass assistant_model= instead."
TOKEN_HEALING = "token_healing is not supported with a verifier; call model.heal_tokens(input_ids, tokenizer) first."
# Tokenizers and multimodal processors also return these for plain text; all zeros means text only.
TEXT_MARKERS = {"token_type_ids", "mm_token_type_ids"}


def check_request(request: Request, source: str | None) -> None:
    """Raise ValueError or TypeError for models, inputs and settings of a call that are not supported.

    `check_verifier` checks what depends on the verifier.

    Args:
        source: the candidate generator of the call, see `candidates.find_source`; None without one.
    """
    model, config, batch_size = request.model, request.config, len(request.input_ids)
    draft = request.assistant_model if source is None else None
    check_model(model, "target")
    if draft is not None:
        check_model(draft, "draft")
        check_vocabularies(model, draft)
    check_config(config)
    is_user_cache = support.is_user_cache(request.model_kwargs.get(support.CACHE_ARGUMENT))
    check_inputs(model, request.input_ids, request.model_kwargs, is_user_cache)
    check_draft_source(draft, config, source)
    for processor in request.processors:
        for refused, reason in support.REFUSED_PROCESSORS.items():
            if isinstance(processor, refused):
                raise ValueError(
                    f"{type(processor).__name__} cannot be used with a verifier: {reason}. Drop one of them."
                )
    check_rows(model, "target", batch_size)
    if draft is not None:
        check_rows(draft, "draft", batch_size)
        check_known_ids(model, draft, request.input_ids)
    if request.streamer is not None and batch_size > 1:
        raise ValueError(f"streamers require batch size 1, got {batch_size}, because rows have different lengths.")
    if request.output_token_records and not config.return_dict_in_generate:
        raise ValueError("output_token_records=True needs return_dict_in_generate=True to return them.")
    if isinstance(request.verifier, str):
        raise TypeError(
            f"diversed_decoding needs a Verifier, got the name {request.verifier!r}; pass "
            f"build_verifier({request.verifier!r}) of hf_diversed.verifiers."
        )
    check_head_and_verifier(None, request.verifier)
    if request.verifier is None:
        raise TypeError("diversed_decoding needs verifier=; see hf_diversed.VERIFIERS.")


def check_learned_positions(
    target: PreTrainedModel, draft: PreTrainedModel, positions: torch.Tensor, max_length: int
) -> None:
    """Raise ValueError if a call may exceed the draft model's learned positions, unless the target has no more.

    Args:
        positions: of the prompts, long `[B, S]`. max_length: number of ids that a row can reach, padding included.
    """
    most = support.max_positions(draft)
    if most is None or not support.has_learned_positions(draft):
        return
    reached = int(positions[:, -1].max()) + 1 + max_length - positions.shape[1]
    if most >= reached - 1:  # no model reads the last token
        return
    if not support.has_learned_positions(target) or most < (support.max_positions(target) or 0):
        raise ValueError(
            f"the draft model {type(support.base_model(draft)).__name__} has {most} positions, but the call can "
            f"reach {reached} tokens; lower max_new_tokens, or use another draft model."
        )


def check_rotary_limit(model: PreTrainedModel, positions: torch.Tensor, max_length: int) -> None:
    """Raise ValueError if the target's rotary frequencies can change inside a call.

    Longrope has two sets of frequencies, so prompts beyond the limit are supported; dynamic NTK has others for every
    length.

    Args:
        positions: of the prompts, long `[B, S]`. max_length: number of ids that a row can reach, padding included.
    """
    found = support.rotary_limit(model)
    if found is None or max_length <= found[0]:
        return
    limit, rope_type = found
    if rope_type == "longrope" and int(positions[:, -1].min()) > limit:  # the prefill leaves out the last token
        return
    longer = f", or pass prompts of more than {limit + 1} ids" if rope_type == "longrope" else ""
    raise ValueError(
        f"the target {type(support.base_model(model)).__name__} changes its rotary frequencies at {limit} ids "
        f"(type {rope_type!r}), and the call can reach {max_length}; lower max_new_tokens{longer}."
    )


def check_verifier(verifier: Verifier, context: DecodingContext) -> None:
    """Raise ValueError if a verifier does not support a call, and log its remarks once."""
    name = type(verifier).__name__
    if not isinstance(verifier.needs_hidden_states, bool):
        raise ValueError(f"{name}.needs_hidden_states must be False or True, got {verifier.needs_hidden_states!r}.")
    if not context.draft_hidden_size and verifier.needs_hidden_states:
        raise ValueError(
            f"{name} needs hidden states of a draft model for each draft token, which prompt lookup "
            "(prompt_lookup_num_tokens) and candidate generators lack; use a head with "
            'features="distribution", or only an assistant_model.'
        )
    if context.draft_hidden_size is None and verifier.needs_draft_confidence:
        raise ValueError(
            f"{verifier!r} needs probabilities of a draft model for each draft token, which prompt lookup "
            "(prompt_lookup_num_tokens) and greedy candidate generators lack; use a verifier that needs only p and "
            "the draft token, or only an assistant_model."
        )
    config = None if context.target is None else support.text_config(context.target)
    if verifier.needs_hidden_states and getattr(config, "tie_last_hidden_states", None) is False:
        raise ValueError(
            f"{name} needs the last hidden state after the final norm, but the target's config has "
            "tie_last_hidden_states=False; remove that entry."
        )
    verifier.check(context)
    for remark in verifier.remarks(context):
        logger.warning_once(remark)


def check_architecture(model: PreTrainedModel, role: str) -> None:
    """Raise if the cache of a model cannot be rolled back per row. `role` is "target" or "draft"."""
    if not isinstance(support.base_model(model), PreTrainedModel):
        raise TypeError(
            f"the {role} must be a model of transformers (or a PEFT model around one), got {type(model).__name__}; "
            "load it with AutoModelForCausalLM.from_pretrained."
        )
    name = type(support.base_model(model)).__name__
    if (reason := support.cannot_roll_back(model)) is not None:
        raise ValueError(f"the {role} {name} {reason}")
    implementation = support.attention_implementation(model)
    if implementation not in support.MASKED_ATTENTION:
        raise ValueError(
            f"the {role} {name} uses attn_implementation={implementation!r}, which does not support 4D masks; load "
            'it with attn_implementation="sdpa" (or "eager").'
        )


def check_model(model: PreTrainedModel, role: str) -> None:
    """`check_architecture`, and raise ValueError for models in a state that does not allow decoding."""
    check_architecture(model, role)
    name = type(support.base_model(model)).__name__
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"the {role} {name} has no output embedding, so it predicts no tokens; load it with AutoModelForCausalLM."
        )
    if support.device(model) is None:
        raise ValueError(f"the {role} {name} has no weights (its device is meta); load it with from_pretrained.")
    if support.recomputes_activations(model):
        raise ValueError(
            f"the {role} {name} is in training mode with gradient checkpointing, which drops the cache; call "
            "model.eval() or model.gradient_checkpointing_disable() first."
        )
    adapter = support.prompt_learning_adapter(model)
    if adapter is not None:
        raise ValueError(
            f"the {role} {name} has a prompt-learning adapter ({adapter}), whose virtual tokens are not supported; "
            "use an adapter without them, such as LoRA."
        )
    if "alora_offsets" in support.peft_inputs(model):
        raise ValueError(
            f"the {role} {name} has an activated LoRA (aLoRA), whose start PEFT counts from the end of the prompt, "
            "which is wrong for blocks of draft tokens; use an adapter without alora_invocation_tokens."
        )
    if support.is_sharded(model):
        raise ValueError(f"the {role} {name} is sharded over processes (ZeRO-3 or FSDP); gather it first.")


def check_rows(model: PreTrainedModel, role: str, batch_size: int) -> None:
    """Raise ValueError for batch sizes > 1 if positions cannot differ per row, or if adapters belong to rows."""
    if batch_size == 1:
        return
    name = type(support.base_model(model)).__name__
    for argument, advice in (
        ("adapter_names", "call set_adapter, and decode the prompts of each adapter in a call of their own"),
        ("task_ids", "decode the prompts one by one"),
    ):
        if argument in support.peft_inputs(model):
            raise ValueError(
                f"the {role} {name} has an adapter or task per row ({argument}), but equal prompts are processed once "
                f"and finished rows are removed: batch size must be 1, got {batch_size}; {advice}."
            )
    if (reason := support.needs_equal_rows(model)) is not None:
        raise ValueError(
            f"the {role} {name} {reason}, which is wrong for rows of different lengths: batch size must be 1, got "
            f"{batch_size}; decode the prompts one by one."
        )


def check_shapes(input_ids: torch.Tensor, model_kwargs: dict) -> None:
    """Raise ValueError for empty prompts, masks and positions of another shape, and positions that differ per axis.

    Raise TypeError for inputs that are not tensors.
    """
    for name, value in {"input_ids": input_ids, **model_kwargs}.items():
        if name in ("input_ids", "attention_mask", "position_ids") and not isinstance(value, torch.Tensor | None):
            raise TypeError(
                f"{name} must be a tensor, got {type(value).__name__}; call the tokenizer with "
                'return_tensors="pt" and pass **inputs to generate.'
            )
    expected = tuple(input_ids.shape)
    if input_ids.ndim != 2 or 0 in expected:
        raise ValueError(f"input_ids must be [batch, length] with at least one row and one id, got {list(expected)}.")
    if input_ids.dtype not in (torch.long, torch.int):
        raise ValueError(
            f"input_ids must be ids (long or int), got {input_ids.dtype}; pass the ids of the tokenizer's output."
        )
    for name in ("attention_mask", "position_ids"):
        value = model_kwargs.get(name)
        if value is None or tuple(value.shape) == expected:
            continue
        # `generate` creates positions of one row, or of one plane per axis for multimodal models.
        fits = value.ndim in (2, 3) and tuple(value.shape[-2:]) in (expected, (1, expected[1]))
        if name == "position_ids" and fits:
            if value.ndim == 3 and not torch.equal(value, value[:1].expand_as(value)):
                raise ValueError(
                    f"position_ids {list(value.shape)} must be equal in all planes, because verifiers support text "
                    "only; pass one plane."
                )
            continue
        raise ValueError(
            f"{name} must have the shape of input_ids, {list(expected)}, got {list(value.shape)}; pass the "
            "tokenizer's output unchanged."
        )
    mask = model_kwargs.get("attention_mask")
    if mask is not None and (empty := (mask == 0).all(dim=-1)).any():
        raise ValueError(
            f"every prompt must have a token, but attention_mask is 0 in all of row {int(empty.long().argmax())}; "
            "remove empty prompts, or start them with a BOS token."
        )


def check_config(config: GenerationConfig) -> None:
    """Raise ValueError for decoding modes that are incompatible with a verifier."""
    check_cache_implementation(config.cache_implementation)
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams must be 1 with a verifier, got {config.num_beams}; beam search is not supported.")
    modes = {
        "assistant_ensemble_weight": f'pass verifier="static:{config.assistant_ensemble_weight}" instead',
        "penalty_alpha": "contrastive search is another decoding method; remove the verifier or pass {name}=None",
        "dola_layers": "DoLa is another decoding method; remove the verifier or pass {name}=None",
        "force_words_ids": "this is constrained beam search; remove the verifier or pass {name}=None",
        "constraints": "this is constrained beam search; remove the verifier or pass {name}=None",
    }
    for name, advice in modes.items():
        value = getattr(config, name)
        if value not in (None, False):
            raise ValueError(f"{name}={value!r} cannot be combined with a verifier: {advice.format(name=name)}.")
    if config.assistant_early_exit is not None:
        raise ValueError(EARLY_EXIT)
    if config.token_healing:
        raise ValueError(TOKEN_HEALING)
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name) and config.return_dict_in_generate:
            raise ValueError(f"{name}=True is not supported with a verifier; run the model on the returned sequences.")


def check_draft_source(draft: PreTrainedModel | None, config: GenerationConfig, source: str | None) -> None:
    """Raise ValueError unless a call has a source of draft tokens, with valid settings.

    Only a draft model and prompt lookup can be combined.

    Args:
        source: the candidate generator of the call; None without one.
    """
    looked_up = config.prompt_lookup_num_tokens
    sources = ([] if draft is None else ["assistant_model"]) + ([] if source is None else [source])
    sources += [] if looked_up is None else [f"prompt_lookup_num_tokens={looked_up!r}"]
    if not sources:
        raise ValueError(
            "a verifier needs draft tokens to verify: pass assistant_model= (without the hook, bind it with "
            "functools.partial: `generate` does not pass it on), prompt_lookup_num_tokens=, use_mtp=True or "
            "candidate_generator=."
        )
    if len(sources) > 1 and source is not None:
        raise ValueError(f"{' and '.join(sources)} are two sources of draft tokens; pass only one.")
    if len(sources) > 1 and support.recurrent_states(draft):
        raise ValueError(
            f"{' and '.join(sources)} cannot be combined: the draft model has recurrent states, which cannot skip "
            "copied tokens; pass only one."
        )
    for name in ("prompt_lookup_num_tokens", "max_matching_ngram_size", "prefill_chunk_size"):
        value = getattr(config, name)
        if value is not None and (read_integer(value) or 0) < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {value!r}.")


def check_return_sequences(count: int | None, named: dict[str, int | None]) -> None:
    """Raise ValueError for several sequences per prompt without a draft model, which upstream refuses.

    Args:
        named: the settings in `DRAFT_MODES` with their values.
    """
    used = [name for name, value in named.items() if is_set(value)]
    if used and (count or 1) > 1:
        raise ValueError(
            f"num_return_sequences must be 1 with {used[0]}, got {count}: call generate once per sequence, or draft "
            "with an assistant_model only."
        )


def check_cache_implementation(name: str | None) -> None:
    """Raise ValueError for caches with properties that `RaggedCache` lacks; other caches are replaced by it."""
    if name == "paged":
        raise ValueError(
            'cache_implementation="paged" selects continuous batching, which does not support verifiers; pass None.'
        )
    if name in ("offloaded", "offloaded_static", "quantized"):
        raise ValueError(
            f"cache_implementation={name!r} is not supported: rows of different lengths need this library's cache, "
            "which can be neither offloaded nor quantized. Pass None."
        )


def check_inputs(
    model: PreTrainedModel, input_ids: torch.Tensor | None, model_kwargs: dict, is_user_cache: bool
) -> None:
    """Raise ValueError for unsupported model inputs and invalid shapes.

    Args:
        input_ids: None if upstream creates the first token.
    """
    if is_user_cache:
        raise ValueError(
            "the caller's cache (past_key_values= or cache=) is not supported: rows of different lengths need this "
            "library's cache. Pass the whole prompt as input_ids."
        )
    if model_kwargs.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds are not supported: the draft model needs token ids. Pass input_ids.")
    for name, value in model_kwargs.items():
        if value is None or name in _TEXT_INPUTS or name in support.CACHE_NAMES:
            continue
        if name in TEXT_MARKERS and not support.reads_token_types(model) and not torch.as_tensor(value).any():
            continue
        if name == "mm_encoder_outputs" and all(output is None for output in value.values()):
            continue
        raise ValueError(
            f"the model input {name!r} is not supported: verifiers support ids, masks and positions of text only. "
            "Remove it."
        )
    if input_ids is not None:
        check_shapes(input_ids, model_kwargs)


def check_vocabularies(model: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise ValueError if the vocabulary sizes differ by more than padding."""
    target_size, draft_size = support.vocab_size(model), support.vocab_size(draft)
    if abs(target_size - draft_size) > max(_LARGEST_PADDING, max(target_size, draft_size) // 100):
        raise ValueError(
            f"target and draft model have vocabularies of {target_size} and {draft_size} ids, which is more than "
            "padding. Use a draft model from the same family."
        )


def check_tokenizers(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if an id stands for two tokens, unless it is special: chat models often rename those."""
    if target is draft:
        return
    by_id, special = {index: token for token, index in draft.get_vocab().items()}, _special_ids(target, draft)
    for token, index in target.get_vocab().items():
        other = by_id.get(index, token)
        if other != token and index not in special:
            raise ValueError(
                f"target and draft model have different tokenizers: id {index} is {token!r} for the target and "
                f"{other!r} for the draft model. Use a draft model with the target's tokenizer, or transformers' "
                "assisted generation, which is lossless, without a verifier."
            )


def _special_ids(*tokenizers: PreTrainedTokenizerBase) -> set[int]:
    ids: set[int] = set()
    for each in tokenizers:
        ids.update(each.all_special_ids)
        added = getattr(each, "added_tokens_decoder", None)
        if isinstance(added, dict):  # a method in MistralCommonBackend
            ids.update(index for index, token in added.items() if token.special)
    return ids


def check_known_ids(model: PreTrainedModel, draft: PreTrainedModel, input_ids: torch.Tensor) -> None:
    """Raise ValueError for prompts with ids that only the target embeds and no model emits, such as image tokens."""
    known = support.known_ids(draft)
    if not support.vocab_size(model) <= known < support.known_ids(model):  # further logits are padding
        return
    if (highest := int(input_ids.max())) >= known:
        raise ValueError(
            f"the draft model {type(support.base_model(draft)).__name__} embeds {known} ids, but the prompts have "
            f"the id {highest}, which only the target embeds; use another draft model, or remove the id."
        )


def check_stopping(schedule: str | None, threshold: float | None, has_draft_model: bool) -> None:
    """Raise ValueError for an invalid threshold, and for settings that the sources of draft tokens do not support.

    Warn once about a schedule that is not supported.

    Args:
        schedule, threshold: None if not set.
    """
    if threshold is not None:
        advice = (
            "A draft block ends after a token with a lower probability under the draft model; 0 sets no threshold."
        )
        check_range("assistant_confidence_threshold", threshold, 0.0, 1.0, advice)
    named = [f"assistant_confidence_threshold={threshold!r}"] if threshold else []
    named += [f"num_assistant_tokens_schedule={schedule!r}"] if schedule == CONFIDENCE else []
    if named and not has_draft_model:
        raise ValueError(
            f"{named[0]} needs the probabilities of a draft model, which prompt lookup (prompt_lookup_num_tokens) "
            'lacks: pass assistant_model=, or use num_assistant_tokens_schedule="constant" without a threshold.'
        )
    if schedule not in (None, CONSTANT, CONFIDENCE):
        logger.warning_once(
            f"num_assistant_tokens_schedule={schedule!r} has no effect with a verifier; supported are "
            f'"{CONSTANT}" and "{CONFIDENCE}".'
        )
