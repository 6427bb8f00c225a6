"""Handling of `diversed_head=` and `verifier=` in `generate`, and of attachments; `patching.py` installs the hook."""

import copy
import functools
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel, StoppingCriteriaList

from hf_diversed import _compat
from hf_diversed.generation import checks
from hf_diversed.generation.patching import Options, install_hook, stock_signature
from hf_diversed.generation.planning import diversed_decoding
from hf_diversed.generation.processing import stop_criterion
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.verifiers import CertifiedVerifier, DiversedVerifier, Verifier, build_verifier


_DRAFT_MODES = ("prompt_lookup_num_tokens", "assistant_early_exit")
# Settings of DiversedVerifier and CertifiedVerifier, and their argument names in `generate`.
HEAD_SETTINGS = {
    "strictness": "diversed_strictness",
    "max_bias": "diversed_max_bias",
    "bias_budget": "diversed_bias_budget",
    "max_ratio": "diversed_max_ratio",
    "max_drop": "diversed_max_drop",
}
# These two settings are mutually exclusive.
_EXCLUSIVE = {"strictness", "max_drop"}


@dataclass(frozen=True, eq=False)
class Attached:
    """Draft model and options attached to a model."""

    assistant_model: PreTrainedModel
    options: Options
    num_assistant_tokens: int | None


class Attachment:
    """Handle returned by `attach`. As a context manager it is valid in the block only, instead of in every thread."""

    def __init__(self, model: torch.nn.Module, attached: Attached):
        self._model_ref, self._attached = weakref.ref(model), attached

    def __enter__(self) -> "Attachment":
        model = self._model_ref()
        with _LOCK:
            entries = [] if model is None else _STANDING.get(model, [])
            entries[:] = [entry for entry in entries if entry.attached is not self._attached]
        _ENTERED.set((*_ENTERED.get(), (self._model_ref, self._attached)))
        return self

    def __exit__(self, *exc_info) -> None:
        stack = list(_ENTERED.get())
        places = [place for place, entered in enumerate(stack) if entered[1] is self._attached]
        if places:
            del stack[places[-1]]  # a handle may be entered several times
            _ENTERED.set(tuple(stack))


@dataclass(frozen=True)
class _Standing:
    """Attachment valid in every thread. A freed handle cannot be entered, so older attachments can be dropped."""

    attached: Attached
    handle: "weakref.ref[Attachment]"


# Entered blocks of the current thread or task, innermost last.
_ENTERED: ContextVar[tuple[tuple[weakref.ref, Attached], ...]] = ContextVar("hf_diversed_attached", default=())
_STANDING: "weakref.WeakKeyDictionary[torch.nn.Module, list[_Standing]]" = weakref.WeakKeyDictionary()  # newest last
_LOCK = threading.Lock()


def _keep_beside(model: torch.nn.Module, attached: Attached) -> Attachment:
    """Attach to a model in every thread, until it is replaced, detached, or its handle is entered."""
    handle = Attachment(model, attached)
    with _LOCK:
        entries = _STANDING.setdefault(model, [])
        _forget_replaced(entries)
        entries.append(_Standing(attached, weakref.ref(handle)))
    return handle


def attached_to(model: torch.nn.Module) -> Attached | None:
    """Return the attachment of the innermost `with` block, else the one for all threads, else None."""
    for model_ref, attached in reversed(_ENTERED.get()):
        if model_ref() is model:
            return attached
    if not _STANDING.get(model):
        return None
    with _LOCK:
        entries = _STANDING.get(model, [])
        _forget_replaced(entries)
        return entries[-1].attached if entries else None


def _forget_replaced(entries: list[_Standing]) -> None:
    permanent = [index for index, entry in enumerate(entries) if entry.handle() is None]
    del entries[: permanent[-1] if permanent else 0]


def attach(
    model: PreTrainedModel,
    assistant_model: PreTrainedModel,
    diversed_head: "DiversedHead | str | os.PathLike | None" = None,
    *,
    verifier: Verifier | str | None = None,
    num_assistant_tokens: int | None = None,
    diversed_strictness: float | None = None,
    diversed_max_bias: float | None = None,
    diversed_bias_budget: float | None = None,
    diversed_max_ratio: float | None = None,
    diversed_max_drop: float | None = None,
) -> Attachment:
    """Use this draft model and verifier in all later `model.generate(...)` calls, for code that cannot pass them.

    As a context manager, the attachment is valid in the current thread or task until the block ends. Threads started
    inside the block use it if they run in `contextvars.copy_context()`. Without `with`, it is valid in every thread
    until `detach`. A `with` statement also attaches in every thread between the call and the start of the block, so a
    server with other threads that call `generate` on this model should pass draft model and verifier per call instead.
    Nothing is stored on the model: `state_dict`, `save_pretrained`, `deepcopy` and pickle do not change. Arguments of
    a call and entries of its generation config take precedence over the attachment.

    Example:
        ```python
        with hf_diversed.attach(model, draft, head):
            pipeline("text-generation", model=model, tokenizer=tokenizer)("Question: ...")
        ```
    """
    settings = diversed_strictness, diversed_max_bias, diversed_bias_budget, diversed_max_ratio, diversed_max_drop
    options = Options(diversed_head, verifier, *settings)
    if (diversed_head is None) == (verifier is None):
        raise ValueError("attach needs exactly one of diversed_head= and verifier=.")
    for candidate, role in ((model, "target"), (assistant_model, "draft")):
        checks.check_model(candidate, role)
    named = {setting: getattr(options, argument) for setting, argument in HEAD_SETTINGS.items()}
    if verifier is not None:
        resolve_verifier(None, verifier, **named)
    check_settings(named)
    install_hook()
    return _keep_beside(_compat.base_model(model), Attached(assistant_model, options, num_assistant_tokens))


def detach(model: PreTrainedModel) -> None:
    """Remove all attachments of a model, in every thread and in the current blocks, if any."""
    inner = _compat.base_model(model)
    with _LOCK:
        _STANDING.pop(inner, None)
    _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered[0]() is not inner))


def dispatch(original, model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]):
    """Run one `generate` call: with a verifier if the call or an attachment has one, else upstream's."""
    attachment = attached_to(model)
    options = Options.pop_from(kwargs)
    if attachment is None and not options.names_verifier():
        if isinstance(kwargs.get("custom_generate"), str):  # a script of the Hub may add the verifier
            return original(model, *args, **kwargs, **options.given())
        if given := [name for name, value in options.given().items() if value is not False]:
            raise ValueError(f"{', '.join(given)} requires a verifier: pass diversed_head= or verifier= as well.")
        return original(model, *args, **kwargs)
    return _generate_relaxed(original, model, attachment, options, args, kwargs)


def _generate_relaxed(original, model: PreTrainedModel, attachment: Attached | None, options: Options, args, kwargs):
    """Bind draft model, verifier and streamer to the decoding loop, and call upstream's `generate` with it."""
    signature = inspect.signature(original)
    if "assistant_model" not in signature.parameters:  # wrapped with *args and **kwargs
        signature = stock_signature()
    arguments = signature.bind(model, *args, **kwargs).arguments
    extra = arguments.pop("kwargs", {})
    call = _Call(model, arguments, extra, attachment)
    draft, num_assistant_tokens = call.drafting()
    checks.check_models(model, draft, extra.get("tokenizer"), extra.pop("assistant_tokenizer", None))
    call.refuse_other_modes()
    loop = functools.partial(
        diversed_decoding,
        assistant_model=draft,
        verifier=call.verifier(options),
        num_assistant_tokens=num_assistant_tokens,
        output_token_records=bool(options.output_token_records),
        temperatures=options.diversed_temperature,
        is_checked=True,
        streamer=arguments.get("streamer"),
    )
    call.take_over_stop_strings()
    call.allow_prompt_lookup()
    arguments["custom_generate"] = loop
    return original(arguments.pop("self"), **arguments, **extra)


@dataclass(frozen=True, eq=False)
class _Call:
    """Bound arguments of one `generate` call, and the sources of its settings.

    Precedence: keyword argument, generation config of the call, attachment, generation config of the model.
    """

    model: PreTrainedModel
    arguments: dict[str, Any]
    extra: dict[str, Any]
    attachment: Attached | None

    def named(self, name: str):
        """Return a setting from the keywords of the call or its generation config; None if neither has it.

        As in upstream, a keyword of None overrides all configurations.
        """
        if name in self.extra:
            return self.extra[name]
        config = self.arguments.get("generation_config")
        return _compat.config_entry(config, name)

    def setting(self, name: str):
        """Return `named`, with the generation config of the model as fallback."""
        if name in self.extra:
            return self.extra[name]
        return _first(self.named(name), _compat.config_entry(self.model.generation_config, name))

    def drafting(self) -> tuple[PreTrainedModel | None, int | None]:
        """Return the draft model, None for prompt lookup and early exit, and the draft length, None if unset.

        The attachment supplies them unless the call itself selects prompt lookup or early exit.
        """
        attached = self.attachment if all(self.named(mode) is None for mode in _DRAFT_MODES) else None
        draft, length = self.arguments.pop("assistant_model", None), self.named("num_assistant_tokens")
        if attached is not None:
            draft = _first(draft, attached.assistant_model)
            length = _first(length, attached.num_assistant_tokens)
        if draft is None and all(self.setting(mode) is None for mode in _DRAFT_MODES):
            raise ValueError(
                "diversed_head= and verifier= need draft tokens to verify: pass assistant_model= as well (or "
                "prompt_lookup_num_tokens= or assistant_early_exit=)."
            )
        length = _first(length, self.setting("num_assistant_tokens"))
        self.extra.pop("num_assistant_tokens", None)
        return draft, length

    def verifier(self, options: Options) -> Verifier | None:
        """The verifier of the call, or the attached one. Settings from a generation config apply to heads only."""
        attached = Options() if self.attachment is None else self.attachment.options
        chosen = options if options.names_verifier() else attached
        sources: list[Callable[[str], Any]] = [lambda name: getattr(options, name)]
        if chosen.diversed_head is not None:
            beside = attached if chosen is attached else Options()
            sources += [self.named, lambda name: getattr(beside, name), self.setting]
        return resolve_verifier(chosen.diversed_head, chosen.verifier, self.model.device, **_first_settings(sources))

    def refuse_other_modes(self) -> None:
        """Raise ValueError for modes and inputs that upstream would handle before it calls the loop."""
        other_loop = self.arguments.get("custom_generate")
        if other_loop is not None and other_loop is not diversed_decoding:
            raise ValueError(
                f"custom_generate={other_loop!r} cannot be combined with diversed_head= or verifier=; pass one."
            )
        if self.setting("token_healing"):
            raise ValueError("token_healing is not supported with a verifier; heal the prompt before the call.")
        checks.check_cache_implementation(self.setting("cache_implementation"))
        if self.setting("assistant_early_exit") is not None:
            checks.check_early_exit(self.model)
        inputs = _compat.forward_inputs(self.model)
        named = inputs | checks.TEXT_MARKERS
        given = {name: value for name, value in self.extra.items() if name in named}
        prompts = _first(self.arguments.get("inputs"), self.extra.get("input_ids"))  # None: upstream starts with BOS
        is_user_cache = any(self.extra.get(name) is not None for name in _compat.CACHE_NAMES)
        checks.check_inputs(self.model, prompts, given, is_user_cache)
        for name in checks.TEXT_MARKERS - inputs:  # all zeros; upstream would reject the argument
            self.extra.pop(name, None)

    def allow_prompt_lookup(self) -> None:
        """Upstream refuses prompt lookup for models with recurrent states. Use a shallow copy that lacks the mark."""
        if self.setting("prompt_lookup_num_tokens") is not None and _compat.recurrent_states(self.model):
            self.arguments["self"] = copy.copy(self.arguments["self"])
            self.arguments["self"]._is_stateful = False

    def take_over_stop_strings(self) -> None:
        """Turn stop strings into a criterion, since upstream does not pass the tokenizer to a custom loop."""
        stop_strings = self.setting("stop_strings")
        tokenizer = self.extra.pop("tokenizer", None)
        if stop_strings is None:
            return
        if tokenizer is None:
            raise ValueError("stop_strings require the tokenizer: pass tokenizer=.")
        criteria = StoppingCriteriaList(self.arguments.get("stopping_criteria") or [])
        criteria.append(stop_criterion(tokenizer, stop_strings))
        self.arguments["stopping_criteria"] = criteria
        self.extra.pop("stop_strings", None)
        config = self.arguments.get("generation_config")
        if config is not None and _compat.config_entry(config, "stop_strings") is not None:
            self.arguments["generation_config"] = _without_stop_strings(config)
        if _compat.config_entry(self.model.generation_config, "stop_strings") is not None:
            # Upstream reads the model's config again. Use a shallow copy, which shares the weights.
            twin = copy.copy(self.model)
            twin.generation_config = _without_stop_strings(self.model.generation_config)
            self.arguments["self"] = twin


def _first_settings(sources: list[Callable[[str], Any]]) -> dict[str, Any]:
    """Return each setting from the first source that has it."""
    settings: dict[str, Any] = {}
    for source in sources:
        taken = {*settings, *(_EXCLUSIVE if settings.keys() & _EXCLUSIVE else ())}
        found = {setting: source(argument) for setting, argument in HEAD_SETTINGS.items() if setting not in taken}
        settings |= {setting: value for setting, value in found.items() if value is not None}
    return settings


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if `max_drop` is combined with another setting. None means unset."""
    others = [HEAD_SETTINGS[name] for name, value in settings.items() if value is not None and name != "max_drop"]
    if settings.get("max_drop") is not None and others:
        raise ValueError(
            f"diversed_max_drop sets the certified strictness and cannot be combined with {' and '.join(others)}; "
            "pass only one of them."
        )


def resolve_verifier(
    diversed_head: "DiversedHead | str | os.PathLike | None",
    verifier: Verifier | str | None,
    device: torch.device | None = None,
    **settings: float | list[float] | torch.Tensor | None,
) -> Verifier | None:
    """Build the requested verifier.

    Args:
        diversed_head: head, or its folder or Hub id. verifier: verifier, or its name; exclusive with `diversed_head`.
        device: of the head, where it is loaded by name.
        settings: arguments of `DiversedVerifier`, None for its defaults; or `max_drop`, for a `CertifiedVerifier`.

    Raises:
        ValueError: for conflicting arguments, unknown names, and settings without a head.
    """
    if diversed_head is not None and verifier is not None:
        raise ValueError("diversed_head= and verifier= are mutually exclusive; pass only one of them.")
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if diversed_head is not None:
        if isinstance(diversed_head, (str, os.PathLike)):
            diversed_head = load_head(os.fspath(diversed_head), device)
        check_settings(given)
        return (
            CertifiedVerifier(diversed_head, **given)
            if "max_drop" in given
            else DiversedVerifier(diversed_head, **given)
        )
    if given:
        raise ValueError(
            f"{' and '.join(HEAD_SETTINGS[name] for name in given)} can only be used with a head: pass "
            f"diversed_head=, or build DiversedVerifier(head, {next(iter(given))}=...) yourself."
        )
    if isinstance(verifier, str):
        return build_verifier(verifier)
    return verifier


def _without_stop_strings(config: GenerationConfig) -> GenerationConfig:
    config = copy.deepcopy(config)
    config.stop_strings = None
    return config


def _first(*values):
    return next((value for value in values if value is not None), None)
