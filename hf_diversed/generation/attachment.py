"""Draft models and verifiers that stay attached to a model, for code that cannot pass them to `generate`."""

import os
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed import model_facts
from hf_diversed.generation import checks
from hf_diversed.generation.options import ARGUMENTS, Options
from hf_diversed.generation.patching import install_hook
from hf_diversed.generation.request import AttachedOptions, check_head_and_verifier, resolve_verifier
from hf_diversed.head import DiversedHead
from hf_diversed.verifiers import Verifier


class Attachment:
    """Handle returned by `attach`. As a context manager it is valid in the block only, instead of in every thread."""

    def __init__(self, model: torch.nn.Module, attached: AttachedOptions):
        self._model_ref, self._attached = weakref.ref(model), attached

    def __enter__(self) -> "Attachment":
        model = self._model_ref()
        with _LOCK:
            entries = [] if model is None else _IN_EVERY_THREAD.get(model, [])
            entries[:] = [entry for entry in entries if entry[0] is not self._attached]
        _ENTERED.set((*_ENTERED.get(), (self._model_ref, self._attached)))
        return self

    def __exit__(self, *exc_info) -> None:
        stack = list(_ENTERED.get())
        places = [place for place, entered in enumerate(stack) if entered[1] is self._attached]
        if places:
            del stack[places[-1]]  # a handle may be entered several times
            _ENTERED.set(tuple(stack))


_Entry = tuple[AttachedOptions, "weakref.ref[Attachment]"]  # with the handle returned for it
# Entered blocks of the current thread or task, innermost last.
_ENTERED: ContextVar[tuple[tuple[weakref.ref, AttachedOptions], ...]] = ContextVar("hf_diversed_attached", default=())
# Attachments valid in every thread, newest last.
_IN_EVERY_THREAD: "weakref.WeakKeyDictionary[torch.nn.Module, list[_Entry]]" = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def _attach_in_every_thread(model: torch.nn.Module, attached: AttachedOptions) -> Attachment:
    """Attach to a model in every thread, until it is replaced, detached, or its handle is entered."""
    handle = Attachment(model, attached)
    with _LOCK:
        entries = _IN_EVERY_THREAD.setdefault(model, [])
        _drop_replaced(entries)
        entries.append((attached, weakref.ref(handle)))
    return handle


def attached_to(model: torch.nn.Module) -> AttachedOptions | None:
    """Return the attachment of the innermost `with` block, else the one for all threads, else None."""
    for model_ref, attached in reversed(_ENTERED.get()):
        if model_ref() is model:
            return attached
    if not _IN_EVERY_THREAD.get(model):
        return None
    with _LOCK:
        entries = _IN_EVERY_THREAD.get(model, [])
        _drop_replaced(entries)
        return entries[-1][0] if entries else None


def _drop_replaced(entries: list[_Entry]) -> None:
    """Drop entries that cannot apply: one whose handle was freed stays until `detach` and hides all older ones."""
    permanent = [index for index, (_, handle) in enumerate(entries) if handle() is None]
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
    check_head_and_verifier(diversed_head, None)
    if verifier is not None:
        resolve_verifier(None, verifier, **options.head_settings())
    install_hook()
    attached = AttachedOptions(assistant_model, options, num_assistant_tokens)
    return _attach_in_every_thread(model_facts.base_model(model), attached)


def detach(model: PreTrainedModel) -> None:
    """Remove all attachments of a model, in every thread and in the current blocks, if any."""
    inner = model_facts.base_model(model)
    with _LOCK:
        _IN_EVERY_THREAD.pop(inner, None)
    _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered[0]() is not inner))
