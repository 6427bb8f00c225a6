"""Draft models and verifiers that stay attached to a model, for code that cannot pass them to `generate`."""

import os
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed import model_facts
from hf_diversed.generation import checks
from hf_diversed.generation.options import Options
from hf_diversed.generation.patching import install_hook
from hf_diversed.generation.request import Attached, check_method, resolve_verifier
from hf_diversed.head import DiversedHead
from hf_diversed.head_settings import ARGUMENTS
from hf_diversed.verifiers import Verifier


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
    **settings: Any,
) -> Attachment:
    """Use this draft model and verifier in all later `model.generate(...)` calls, for code that cannot pass them.

    As a context manager, the attachment is valid in the current thread or task until the block ends. Threads started
    inside the block use it if they run in `contextvars.copy_context()`. Without `with`, it is valid in every thread
    until `detach`. A `with` statement also attaches in every thread between the call and the start of the block, so a
    server with other threads that call `generate` on this model should pass draft model and verifier per call instead.
    Nothing is stored on the model: `state_dict`, `save_pretrained`, `deepcopy` and pickle do not change. Arguments of
    a call and entries of its generation config take precedence over the attachment.

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
    if unknown := settings.keys() - ARGUMENTS.values():
        raise TypeError(f"attach got unknown settings {sorted(unknown)}; allowed are {[*ARGUMENTS.values()]}.")
    options = Options(diversed_head, verifier, **settings)
    if (diversed_head is None) == (verifier is None):
        given = "none" if verifier is None else "both"
        raise ValueError(f"attach needs exactly one of diversed_head= and verifier=, got {given}.")
    for candidate, role in ((model, "target"), (assistant_model, "draft")):
        checks.check_model(candidate, role)
    check_method(diversed_head, None)
    if verifier is not None:
        resolve_verifier(None, verifier, **options.head_settings())
    install_hook()
    return _keep_beside(model_facts.base_model(model), Attached(assistant_model, options, num_assistant_tokens))


def detach(model: PreTrainedModel) -> None:
    """Remove all attachments of a model, in every thread and in the current blocks, if any."""
    inner = model_facts.base_model(model)
    with _LOCK:
        _STANDING.pop(inner, None)
    _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered[0]() is not inner))
