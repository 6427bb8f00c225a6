"""Registry of attached draft models and verifiers, by model and by context."""

import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.generation.options import Options


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


def keep_beside(model: torch.nn.Module, attached: Attached) -> Attachment:
    """Attach to a model in every thread, until it is replaced, detached, or its handle is entered."""
    handle = Attachment(model, attached)
    with _LOCK:
        entries = _STANDING.setdefault(model, [])
        _forget_replaced(entries)
        entries.append(_Standing(attached, weakref.ref(handle)))
    return handle


def attached_to(model: torch.nn.Module) -> Attached | None:
    """Return the attachment of the innermost block, else the one for every thread, else None."""
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
    settled = [index for index, entry in enumerate(entries) if entry.handle() is None]
    del entries[: settled[-1] if settled else 0]


def detach(model: PreTrainedModel) -> None:
    """Remove all attachments of a model, in every thread and in the current blocks, if any."""
    inner = _compat.base_model(model)
    with _LOCK:
        _STANDING.pop(inner, None)
    _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered[0]() is not inner))
