"""Handles `generate` calls with `diversed_head=`, `verifier=` or an attachment; `patching.py` installs the hook."""

import copy
import functools
import inspect
from typing import Any

from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList, StopStringCriteria

from hf_diversed import support
from hf_diversed.generation import checks
from hf_diversed.generation.attachment import attached_to
from hf_diversed.generation.options import ARGUMENTS, Options
from hf_diversed.generation.planning import diversed_decoding
from hf_diversed.generation.processing import stop_criterion
from hf_diversed.generation.request import DRAFT_MODES, STOPPING_SETTINGS, Arguments, AttachedOptions


def dispatch(original, stock: inspect.Signature, model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]):
    """Run one `generate` call: with a verifier if the call or an attachment has one, else upstream's.

    Args:
        original: the wrapped `generate`. stock: the signature of upstream's `generate`.
    """
    # Upstream sets it while the model generates draft tokens for another one.
    is_draft = getattr(kwargs.get("generation_config"), "is_assistant", None)
    attached = None if is_draft else attached_to(model)
    options = Options.pop_from(kwargs)
    if attached is None and not options.names_verifier():
        if isinstance(kwargs.get("custom_generate"), str):  # a script of the Hub may add the verifier
            return original(model, *args, **kwargs, **options.given())
        if given := [name for name, value in options.given().items() if value is not False]:
            if settings := [ARGUMENTS[name] for name in options.head_settings()]:
                raise ValueError(f"{', '.join(settings)} requires a head: pass diversed_head= as well.")
            raise ValueError(f"{', '.join(given)} requires a verifier: pass diversed_head= or verifier= as well.")
        return original(model, *args, **kwargs)
    signature = inspect.signature(original)
    if "assistant_model" not in signature.parameters:  # wrapped with *args and **kwargs
        signature = stock
    return _generate_with_verifier(original, signature.bind(model, *args, **kwargs).arguments, options, attached)


def _generate_with_verifier(original, named: dict[str, Any], options: Options, attached: AttachedOptions | None):
    """Bind draft model, verifier and streamer to the decoding loop, and call upstream's `generate` with it."""
    model, extra = named.pop("self"), named.pop("kwargs", {})
    arguments = Arguments(model, named, extra, attached)
    _refuse_modes_of_upstream(arguments)
    draft, num_assistant_tokens = arguments.drafting(options.candidate_generator)
    tokenizer, draft_tokenizer = extra.pop("tokenizer", None), extra.pop("assistant_tokenizer", None)
    if tokenizer is not None and draft_tokenizer is not None:
        checks.check_tokenizers(tokenizer, draft_tokenizer)
    loop = functools.partial(
        diversed_decoding,
        assistant_model=draft,
        verifier=arguments.verifier(options),
        num_assistant_tokens=num_assistant_tokens,
        **{name: arguments.setting(name) for name in STOPPING_SETTINGS},
        output_token_records=bool(options.output_token_records),
        streamer=named.get("streamer"),
        candidate_generator=options.candidate_generator,
    )
    changed = _take_over_stop_strings(arguments, tokenizer)
    if arguments.setting("prompt_lookup_num_tokens") is not None and support.recurrent_states(model):
        # Upstream refuses prompt lookup for models with recurrent states. Use a shallow copy that lacks the mark.
        changed = copy.copy(changed)
        changed._is_stateful = False
    for name in ("assistant_model", "custom_generate"):
        named.pop(name, None)
    for name in checks.TEXT_MARKERS - support.forward_inputs(model):  # all zeros, which upstream would reject
        extra.pop(name, None)
    for name in ("num_assistant_tokens", *STOPPING_SETTINGS):
        extra.pop(name, None)
    return original(changed, custom_generate=loop, **named, **extra)


def _refuse_modes_of_upstream(arguments: Arguments) -> None:
    """Raise ValueError for modes and inputs that upstream handles, changes or rejects before it calls the loop.

    The loop checks the prepared call: `checks.check_request`.
    """
    model, extra = arguments.model, arguments.extra
    other_loop = arguments.named.get("custom_generate")
    if other_loop is not None and other_loop is not diversed_decoding:
        raise ValueError(
            f"custom_generate={other_loop!r} cannot be combined with diversed_head= or verifier=; pass one."
        )
    if arguments.named.get("synced_gpus"):
        raise ValueError(
            "synced_gpus=True is not supported with a verifier: processes need different numbers of rounds."
        )
    checks.check_architecture(model, "target")  # the encoder of an encoder-decoder model would run
    if arguments.setting("token_healing"):
        raise ValueError(checks.TOKEN_HEALING)
    checks.check_cache_implementation(arguments.setting("cache_implementation"))
    if arguments.setting("assistant_early_exit") is not None:
        raise ValueError(checks.EARLY_EXIT)
    sources = {name: arguments.setting(name) for name in DRAFT_MODES}
    checks.check_return_sequences(arguments.setting("num_return_sequences"), sources)
    inputs = support.forward_inputs(model) | checks.TEXT_MARKERS
    given = {name: value for name, value in extra.items() if name in inputs}
    is_user_cache = any(extra.get(name) is not None for name in support.CACHE_NAMES)
    prompts = arguments.named.get("inputs")  # None in both places: upstream starts with BOS
    checks.check_inputs(model, extra.get("input_ids") if prompts is None else prompts, given, is_user_cache)


def _take_over_stop_strings(arguments: Arguments, tokenizer) -> PreTrainedModel:
    """Turn stop strings into a criterion, since upstream does not pass the tokenizer to a custom loop.

    Returns:
        the model; a shallow copy without stop strings in its generation config where that has them.
    """
    model, named = arguments.model, arguments.named
    stop_strings = arguments.setting("stop_strings")
    if stop_strings is None:
        return model
    if tokenizer is None:
        raise ValueError("stop_strings require the tokenizer: pass tokenizer=.")
    criteria = StoppingCriteriaList(named.get("stopping_criteria") or [])
    if not any(type(each) is StopStringCriteria for each in criteria):  # as upstream, the caller's replaces it
        criteria.append(stop_criterion(tokenizer, stop_strings))
    named["stopping_criteria"] = criteria
    arguments.extra.pop("stop_strings", None)
    config = named.get("generation_config")
    if config is not None and support.config_entry(config, "stop_strings") is not None:
        named["generation_config"] = _without_stop_strings(config)
    if support.config_entry(model.generation_config, "stop_strings") is not None:
        twin = copy.copy(model)  # shares the weights
        twin.generation_config = _without_stop_strings(model.generation_config)
        return twin
    return model


def _without_stop_strings(config: GenerationConfig) -> GenerationConfig:
    config = copy.deepcopy(config)
    config.stop_strings = None
    return config
