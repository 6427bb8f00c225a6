"""Wraps `GenerationMixin.generate` and adds arguments to it; the only module that modifies it.

Imports neither torch nor transformers, so that `import hf_diversed` is fast. The first `generate` call imports
`hook.py`, which handles the call.
"""

import functools
import inspect
import sys
import threading
from dataclasses import fields
from importlib import import_module
from types import ModuleType

from hf_diversed._after_import import unwatch, watch
from hf_diversed.generation.options import Options


_UPSTREAM = "transformers.generation.utils"
_HOOK = "_hf_diversed_hook"
_LOCK = threading.Lock()
_STOCK: list[inspect.Signature] = []  # of upstream's `generate`, even if a wrapper with *args and **kwargs hides it


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
        if not _STOCK:
            _STOCK.append(inspect.signature(original))
        if any(_HOOK in vars(layer) and vars(layer)[_HOOK] is layer for layer in _layers(original)):
            return

        @functools.wraps(original)
        def generate(self, *args, **kwargs):
            hook = import_module("hf_diversed.generation.hook")  # imports torch, so only at the first call
            return hook.dispatch(original, _STOCK[0], self, args, kwargs)

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
