"""The only file that touches `GenerationMixin`: puts our `generate` around upstream's, as soon as there is one.

Imports neither torch nor transformers, and nothing else while transformers is being imported: what is done with a call
stands in `hook.py`, which the first call loads.
"""

import functools
import inspect
import sys
import threading
from dataclasses import fields
from types import ModuleType

from hf_diversed._after_import import unwatch, watch
from hf_diversed.generation.options import Options


_UPSTREAM = "transformers.generation.utils"
_HOOK = "_hf_diversed_hook"
_LOCK = threading.Lock()
_STOCK: list[inspect.Signature] = []  # of `generate` as it was when it was first seen


def install_hook() -> None:
    """Wrap `GenerationMixin.generate`, once: now, or right after transformers is imported. `import hf_diversed` does
    it unless HF_DIVERSED_NO_HOOK=1."""
    watch(_UPSTREAM, _wrap)


def uninstall_hook() -> None:
    """Give `GenerationMixin.generate` back, or never take it; does nothing if the hook is not installed.

    Raises:
        RuntimeError: if somebody has wrapped the hooked method since; theirs would be lost.
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
    """Of upstream's `generate`, also where a wrapper that takes anything hides it."""
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
        setattr(generate, _HOOK, generate)  # a wrapper around ours inherits the attribute, but is not its value
        upstream.GenerationMixin.generate = generate


def _layers(function):
    """A function and what it wraps, from the outside in."""
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
