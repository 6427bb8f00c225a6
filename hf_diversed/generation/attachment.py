"""Drafts and rules kept beside models, for callers that only call `generate(**json)`: what holds where, how long."""

import os
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.head import DiversedHead
from hf_diversed.verifiers import Verifier


@dataclass
class Options:
    """The arguments that the hook adds to `generate`."""

    diversed_head: "DiversedHead | str | os.PathLike | None" = None
    verifier: Verifier | str | None = None
    diversed_quality: float | list[float] | torch.Tensor | None = None
    diversed_max_bias: float | list[float] | torch.Tensor | None = None
    diversed_bias_budget: float | list[float] | torch.Tensor | None = None
    output_token_records: bool | None = None

    @classmethod
    def pop_from(cls, kwargs: dict) -> "Options":
        return cls(**{name: kwargs.pop(name, None) for name in (item.name for item in fields(cls))})

    def names_a_rule(self) -> bool:
        return self.diversed_head is not None or self.verifier is not None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, eq=False)
class Attached:
    """What `attach` keeps beside a model."""

    assistant_model: PreTrainedModel
    options: Options
    num_assistant_tokens: int | None


class Attachment:
    """What `attach` returns. Entered as a context manager, it holds for the block instead of for every thread."""

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
        _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered[1] is not self._attached))


@dataclass(frozen=True)
class _Standing:
    """What holds in every thread. Once its handle is gone nobody can enter it: what it replaced never comes back."""

    attached: Attached
    handle: "weakref.ref[Attachment]"


# Blocks that were entered, innermost last: every thread and task has a context of its own and sees only its own.
_ENTERED: ContextVar[tuple[tuple[weakref.ref, Attached], ...]] = ContextVar("hf_diversed_attached", default=())
_STANDING: "weakref.WeakKeyDictionary[torch.nn.Module, list[_Standing]]" = weakref.WeakKeyDictionary()  # newest last
_LOCK = threading.Lock()


def keep_beside(model: torch.nn.Module, attached: Attached) -> Attachment:
    """Let `attached` hold for a model in every thread, until something else does or its handle is entered."""
    handle = Attachment(model, attached)
    with _LOCK:
        entries = _STANDING.setdefault(model, [])
        _forget_replaced(entries)
        entries.append(_Standing(attached, weakref.ref(handle)))
    return handle


def attached_to(model: torch.nn.Module) -> Attached | None:
    """What holds for a model here: the innermost block's, else what holds in every thread."""
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
    """Undo `attach`, in every thread and in the blocks that this one is in; does nothing if nothing is attached."""
    inner = _compat.base_model(model)
    with _LOCK:
        _STANDING.pop(inner, None)
    _ENTERED.set(tuple(entered for entered in _ENTERED.get() if entered[0]() is not inner))
