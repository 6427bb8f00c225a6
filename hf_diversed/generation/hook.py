"""What the library adds to `generate`: its arguments, `with attach(...)`, and the decoding loop.

Modules that need torch or transformers are imported inside functions, so that `import hf_diversed` is fast.
"""

import copy
import functools
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from hf_diversed._after_import import unwatch, watch


if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
    from transformers.generation.candidate_generator import CandidateGenerator
    from transformers.generation.streamers import BaseStreamer

    from hf_diversed.head import DiversedHead
    from hf_diversed.outputs import GenerateDiversedOutput
    from hf_diversed.sampling import RandomSource
    from hf_diversed.verifiers import Verifier


_UPSTREAM = "transformers.generation.utils"
_HOOK = "_hf_diversed_hook"
_LOCK = threading.Lock()
# Open blocks of `attach` in the current thread or task, innermost last: a model, and arguments for its calls.
_ATTACHED: ContextVar[tuple[tuple["torch.nn.Module", dict[str, Any]], ...]] = ContextVar("_ATTACHED", default=())


def diversed_decoding(
    model: "PreTrainedModel",
    input_ids: "torch.Tensor",
    logits_processor: "LogitsProcessorList",
    stopping_criteria: "StoppingCriteriaList",
    generation_config: "GenerationConfig",
    *,
    assistant_model: "PreTrainedModel | None" = None,
    diversed_head: "DiversedHead | str | os.PathLike | None" = None,
    verifier: "Verifier | str | None" = None,
    diversed_strictness: "float | list[float] | torch.Tensor | None" = None,
    diversed_max_bias: "float | list[float] | torch.Tensor | None" = None,
    diversed_max_ratio: "float | list[float] | torch.Tensor | None" = None,
    num_assistant_tokens: int | None = None,
    num_assistant_tokens_schedule: str | None = None,
    assistant_confidence_threshold: float | None = None,
    candidate_generator: "CandidateGenerator | list[CandidateGenerator] | None" = None,
    output_token_records: bool | None = None,
    streamer: "BaseStreamer | None" = None,
    random_source: "RandomSource | None" = None,
    **model_kwargs: Any,
) -> "GenerateDiversedOutput | torch.Tensor":
    """Speculative decoding with any verifier, for batches whose rows accept different numbers of tokens.

    It has the signature of upstream's decoding methods. The hook passes it to `generate` as `custom_generate=`, and
    callers can do the same. Bind draft model, verifier and streamer first, as `generate` does not pass them on; it
    passes the prompt to a streamer that it also receives. For stop strings, pass `stopping_criteria=` to `generate`.

    Args:
        model: the target model. input_ids: long `[B, S]`, left-padded.
        assistant_model: the draft model; None with another source of draft tokens, such as `prompt_lookup_num_tokens`
            (the text). With a draft model, at most `prompt_lookup_num_tokens` are copied where the last
            `max_matching_ngram_size` tokens, 3 if not set, occurred before.
        diversed_head: a head, or its folder or Hub id. verifier: a verifier or its name. One of the two accepts or
            replaces draft tokens.
        diversed_strictness, diversed_max_bias, diversed_max_ratio: settings of the head, see `DiversedVerifier`.
        num_assistant_tokens: gamma, draft tokens per round; None for the default of the verifier or the draft model,
            else at most 16 for a single prompt, or 5.
        num_assistant_tokens_schedule: "constant"; "confidence" to end a block where another draft token is not
            expected to be faster (`ConfidenceRule`), after at most `num_assistant_tokens` if they are set, else 16.
            Compiled rounds have no rule: "confidence" has no effect there. None for the value of a generation
            config, the call's before the draft model's; else "confidence" for a single row whose gamma is set
            nowhere, in eager rounds, and "constant" for all others.
        assistant_confidence_threshold: in [0, 1]. As in transformers, a block ends after a draft token with a lower
            probability under q. It replaces the rule of the schedule; 0 sets no threshold. None for the value that
            the call's or the draft model's generation config sets.
        candidate_generator: drafts instead of `assistant_model`, at most 16 tokens per round unless
            `num_assistant_tokens` is set. Its logits must be the processed ones that the candidates were drawn from;
            without logits, q is a point mass, which is right if the candidates depend on the text only. Create one
            for each call if it keeps state. `update_candidate_strategy` is called after rounds with candidates. For
            a batch, a list of one generator per row; each receives the ids of its row without padding.
        output_token_records: also return `TokenRecords` (needs `return_dict_in_generate=True`).
        streamer: receives every round's tokens once, in order; a `RoundStreamer` also receives records. Batch size
            1 only.
        random_source: source of random numbers; None for torch's generator.

    Returns:
        long `[B, S + T]`, or `GenerateDiversedOutput` with `return_dict_in_generate=True`.

    Raises:
        ValueError, TypeError: before any forward pass, for the reasons in `generation/checks.py`.
        FloatingPointError: if scores of a model, or acceptance probabilities, are NaN or infinite.

    Example:
        ```python
        loop = functools.partial(diversed_decoding, assistant_model=draft, verifier="static:0.7")
        model.generate(**inputs, custom_generate=loop)
        ```
    """
    arguments = dict(locals())  # the parameters above, which are fields of `Call`
    import torch

    from hf_diversed.generation.call import Call
    from hf_diversed.generation.loop import run

    with torch.no_grad():
        return run(Call(**arguments))


_PARAMETERS = [
    each for each in inspect.signature(diversed_decoding).parameters.values() if each.kind is each.KEYWORD_ONLY
]
# Settings of transformers, which may also be in generation configs.
_LENGTHS = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
_NOT_ADDED = ("assistant_model", "streamer", "random_source", *_LENGTHS)
ADDED = [parameter.name for parameter in _PARAMETERS if parameter.name not in _NOT_ADDED]


def install_hook() -> None:
    """Wrap `GenerationMixin.generate` once: now, or when transformers is imported.

    `import hf_diversed` calls this unless HF_DIVERSED_NO_HOOK=1.
    """
    watch(_UPSTREAM, wrap)


def uninstall_hook() -> None:
    """Restore `GenerationMixin.generate`, or cancel a pending installation. Does nothing without the hook.

    Raises:
        RuntimeError: if the hooked method has been wrapped again, as that wrapper would be lost.
    """
    upstream = sys.modules.get(_UPSTREAM)
    if upstream is not None:
        current = upstream.GenerationMixin.generate
        hook = vars(current).get(_HOOK)
        if hook is not None and hook is not current:
            raise RuntimeError(
                "GenerationMixin.generate was wrapped again after hf_diversed; undo that wrapper first."
            )
        if hook is not None:
            upstream.GenerationMixin.generate = current.__wrapped__
    unwatch(_UPSTREAM)


def wrap(upstream: ModuleType) -> None:
    with _LOCK:
        original = upstream.GenerationMixin.generate
        if any(_HOOK in vars(layer) and vars(layer)[_HOOK] is layer for layer in _layers(original)):
            return

        @functools.wraps(original)
        def generate(self, *args, **kwargs):
            return _dispatch(original, self, args, kwargs)

        signature = inspect.signature(original)
        *named, var_keyword = signature.parameters.values()
        added = [parameter for parameter in _PARAMETERS if parameter.name in ADDED]
        generate.__signature__ = signature.replace(parameters=[*named, *added, var_keyword])  # type: ignore[attr-defined]
        setattr(generate, _HOOK, generate)  # a wrapper around this copies the attribute, but is not its value
        upstream.GenerationMixin.generate = generate


def _layers(function):
    """Yield a function and those it wraps, outermost first."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _dispatch(original, model: "PreTrainedModel", args: tuple, kwargs: dict[str, Any]):
    """Run one `generate` call: with a verifier if the call or an attachment has one, else upstream's."""
    # Upstream sets it while the model generates draft tokens for another one.
    is_draft = getattr(kwargs.get("generation_config"), "is_assistant", None)
    attached = {} if is_draft else attached_to(model)
    added = {name: value for name in ADDED if (value := kwargs.pop(name, None)) is not None}
    if not attached and not added.keys() & {"diversed_head", "verifier"}:
        if isinstance(kwargs.get("custom_generate"), str):  # a script of the Hub may add the verifier
            return original(model, *args, **kwargs, **added)
        if added:
            from hf_diversed.generation import checks

            checks.refuse(SimpleNamespace(added=added), checks.WITHOUT_VERIFIER)
        return original(model, *args, **kwargs)
    named = inspect.signature(original).bind(model, *args, **kwargs).arguments
    del named["self"]
    return _generate_with_verifier(original, model, named, named.pop("kwargs", {}), added, attached)


def _generate_with_verifier(original, model: "PreTrainedModel", named: dict, extra: dict, added: dict, attached: dict):
    """Resolve the arguments of the decoding loop, and call upstream's `generate` with the loop.

    Precedence: keyword, generation config of the call, attachment, generation config of the model.

    Args:
        named: arguments in upstream's signature. extra: others. added: ours. attached: those of an attachment.
    """
    from hf_diversed import support
    from hf_diversed.generation import checks

    given = {name: value for name, value in named.items() if value is not None}
    call_sources = [{**extra, **given, **added}, support.entries(named.get("generation_config"))]
    if added.keys() & {"diversed_head", "verifier"}:  # the verifier of the call replaces the attached one
        attached = {name: attached[name] for name in attached.keys() & {"assistant_model", "num_assistant_tokens"}}
    modes = [support.first_set(name, call_sources) for name in checks.DRAFT_MODES]
    if "candidate_generator" in added or any(checks.is_set(mode) for mode in modes):
        attached = {name: attached[name] for name in attached.keys() - {"assistant_model", "num_assistant_tokens"}}
    sources = [*call_sources, attached, vars(model.generation_config)]
    settings = {name: support.first_set(name, sources) for name in itertools.chain(*sources)}
    arguments: dict[str, Any] = {parameter.name: settings.get(parameter.name) for parameter in _PARAMETERS}
    arguments |= {name: support.first_set(name, (added, attached)) for name in ("diversed_head", "verifier")}
    # Lengths in the model's own config rank below these; `Call` reads them from the prepared config.
    own = [{name: value for name, value in source.items() if value is not None} for source in sources[:-1]]
    arguments |= {name: support.first_set(name, own) for name in _LENGTHS}
    if arguments["diversed_head"] is None:  # settings of a head in configs apply to heads only
        arguments |= {name: added.get(name) for name in checks.HEAD_SETTINGS}
    inputs, loop = support.forward_inputs(model) | checks.TEXT_MARKERS, settings.get("custom_generate")
    checks.refuse(
        SimpleNamespace(
            model=model,
            models=[("target", model)],
            generation_config=SimpleNamespace(**settings),
            input_ids=settings.get("input_ids") if settings.get("inputs") is None else settings["inputs"],
            model_kwargs={name: value for name, value in extra.items() if name in inputs},
            has_user_cache=any(extra.get(name) is not None for name in support.CACHE_NAMES),
            custom_generate=None if loop is diversed_decoding else loop,
            synced_gpus=settings.get("synced_gpus"),
            tokenizer=extra.get("tokenizer"),
            assistant_tokenizer=extra.get("assistant_tokenizer"),
        ),
        checks.BEFORE_PREPARATION,
    )
    changed = model
    if settings["stop_strings"] is not None:
        changed = _take_over_stop_strings(model, named, extra, settings["stop_strings"])
    if settings["prompt_lookup_num_tokens"] is not None and support.recurrent_states(model):
        # Upstream refuses prompt lookup for models with recurrent states. Use a shallow copy that lacks the mark.
        changed = copy.copy(changed)
        changed._is_stateful = False
    for name in ("assistant_model", "custom_generate"):
        named.pop(name, None)
    for name in checks.TEXT_MARKERS - support.forward_inputs(model):  # all zeros, which upstream would reject
        extra.pop(name, None)
    for name in ("tokenizer", "assistant_tokenizer", *_LENGTHS):
        extra.pop(name, None)
    return original(changed, custom_generate=functools.partial(diversed_decoding, **arguments), **named, **extra)


def _take_over_stop_strings(model: "PreTrainedModel", named: dict, extra: dict, stop_strings) -> "PreTrainedModel":
    """Turn stop strings into a criterion, since upstream does not pass the tokenizer to a custom loop.

    Returns:
        the model; a shallow copy without stop strings in its generation config where that has them.
    """
    from transformers import StoppingCriteriaList, StopStringCriteria

    from hf_diversed.generation.processing import stop_criterion

    criteria = StoppingCriteriaList(named.get("stopping_criteria") or [])
    if not any(type(each) is StopStringCriteria for each in criteria):  # as upstream, the caller's replaces it
        criteria.append(stop_criterion(extra["tokenizer"], stop_strings))
    named["stopping_criteria"] = criteria
    extra.pop("stop_strings", None)
    if getattr(named.get("generation_config"), "stop_strings", None) is not None:
        named["generation_config"] = _without_stop_strings(named["generation_config"])
    if model.generation_config.stop_strings is None:
        return model
    twin = copy.copy(model)  # shares the weights
    twin.generation_config = _without_stop_strings(model.generation_config)
    return twin


def _without_stop_strings(config: "GenerationConfig") -> "GenerationConfig":
    config = copy.deepcopy(config)
    config.stop_strings = None
    return config


def attached_to(model: "torch.nn.Module") -> dict[str, Any]:
    """Return the arguments of the innermost block of `attach` for this model; empty without one."""
    return next((arguments for each, arguments in reversed(_ATTACHED.get()) if each is model), {})


@contextmanager
def attach(
    model: "PreTrainedModel",
    assistant_model: "PreTrainedModel",
    diversed_head: "DiversedHead | str | os.PathLike | None" = None,
    *,
    verifier: "Verifier | str | None" = None,
    num_assistant_tokens: int | None = None,
    **settings: Any,
) -> Iterator[None]:
    """Use this draft model and verifier in the `model.generate(...)` calls of a `with` block that cannot pass them.

    Without `with`, nothing happens.

    The attachment is valid in the current thread or task. Threads started inside the block use it if they run in
    `contextvars.copy_context()`. Nothing is stored on the model: `state_dict`, `save_pretrained`, `deepcopy` and
    pickle do not change. Arguments of a call and entries of its generation config take precedence over the attachment.

    Args:
        diversed_head, verifier: exactly one of them, as in `generate`. num_assistant_tokens: as in `generate`.
        settings: `diversed_strictness` and the other settings of a head, as in `generate`.

    Raises:
        TypeError: for other settings. ValueError: for models, verifiers and settings that cannot be combined.

    Example:
        ```python
        with hf_diversed.attach(model, draft, head):
            pipeline("text-generation", model=model, tokenizer=tokenizer)("Question: ...")
        ```
    """
    from hf_diversed import support
    from hf_diversed.generation import checks
    from hf_diversed.verifiers import build_verifier

    if unknown := settings.keys() - checks.HEAD_SETTINGS:
        raise TypeError(f"attach got unknown settings {sorted(unknown)}; allowed are {[*checks.HEAD_SETTINGS]}.")
    if (diversed_head is None) == (verifier is None):
        given = "none" if verifier is None else "both"
        raise ValueError(f"attach needs exactly one of diversed_head= and verifier=, got {given}.")
    arguments = {
        "assistant_model": assistant_model,
        "diversed_head": diversed_head,
        "verifier": verifier,
        "num_assistant_tokens": num_assistant_tokens,
        **settings,
    }
    models = [("target", model), ("draft", assistant_model)]
    checks.refuse(
        SimpleNamespace(**{"models": models, **dict.fromkeys(checks.HEAD_SETTINGS), **arguments}), checks.ATTACHED
    )
    if isinstance(verifier, str):
        arguments["verifier"] = build_verifier(verifier)
    install_hook()
    entry = support.base_model(model), {name: value for name, value in arguments.items() if value is not None}
    _ATTACHED.set((*_ATTACHED.get(), entry))
    try:
        yield
    finally:  # by identity, because generators may leave an outer block first
        _ATTACHED.set(tuple(each for each in _ATTACHED.get() if each is not entry))
