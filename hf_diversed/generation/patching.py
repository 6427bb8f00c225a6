"""Wraps `GenerationMixin.generate` and adds arguments to it; the only module that modifies it.

Imports neither torch nor transformers, so that `import hf_diversed` is fast. The first `generate` call imports
`hook.py`, which handles the call.
"""

import functools
import inspect
import os
import sys
import threading
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hf_diversed._after_import import unwatch, watch


if TYPE_CHECKING:
    import torch

    from hf_diversed.head import DiversedHead
    from hf_diversed.verifiers import Verifier


_UPSTREAM = "transformers.generation.utils"
_HOOK = "_hf_diversed_hook"
_LOCK = threading.Lock()
_STOCK: list[inspect.Signature] = []  # of the original `generate`


@dataclass
class Options:
    """Arguments that the hook adds to `generate`."""

    diversed_head: "DiversedHead | str | os.PathLike | None" = None
    verifier: "Verifier | str | None" = None
    diversed_strictness: "float | list[float] | torch.Tensor | None" = None
    diversed_max_bias: "float | list[float] | torch.Tensor | None" = None
    diversed_bias_budget: "float | list[float] | torch.Tensor | None" = None
    diversed_max_ratio: "float | list[float] | torch.Tensor | None" = None
    diversed_max_drop: "float | list[float] | torch.Tensor | None" = None
    diversed_temperature: "list[float] | torch.Tensor | None" = None
    output_token_records: bool | None = None

    @classmethod
    def pop_from(cls, kwargs: dict) -> "Options":
        return cls(**{item.name: kwargs.pop(item.name, None) for item in fields(cls)})

    def names_verifier(self) -> bool:
        return self.diversed_head is not None or self.verifier is not None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


def install_hook() -> None:
    """Wrap `GenerationMixin.generate` once: now, or when transformers is imported.

    `import hf_diversed` calls this unless HF_DIVERSED_NO_HOOK=1.
    """
    watch(_UPSTREAM, _wrap)


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


def stock_signature() -> inspect.Signature:
    """Return the signature of upstream's `generate`, even if a wrapper with *args and **kwargs hides it."""
    return _STOCK[0]


def _wrap(upstream: ModuleType) -> None:
    with _LOCK:
        original = upstream.GenerationMixin.generate
        if not _STOCK:
            _STOCK.append(inspect.signature(original))
        if any(_HOOK in vars(layer) and vars(layer)[_HOOK] is layer for layer in _layers(original)):
            return

        @functools.wraps(original)
        def generate(self, *args, **kwargs):
            from hf_diversed.generation.hook import dispatch

            return dispatch(original, self, args, kwargs)

        generate.__signature__ = _extended_signature(original)  # type: ignore[attr-defined]
        setattr(generate, _HOOK, generate)  # a wrapper around this copies the attribute, but is not its value
        upstream.GenerationMixin.generate = generate


def _layers(function):
    """Yield a function and those it wraps, outermost first."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _extended_signature(original) -> inspect.Signature:
    signature = inspect.signature(original)
    *named, var_keyword = signature.parameters.values()
    added = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=item.type)
        for item in fields(Options)
    ]
    return signature.replace(parameters=[*named, *added, var_keyword])
