"""Call a function once a module has been imported, without importing it. Standard library only.

`import hf_diversed` extends transformers, whose import takes seconds; `hf-diversed --help` must not wait for it.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


CALLBACKS: dict[str, Callable[[ModuleType], None]] = {}


class _Watcher(MetaPathFinder):
    """Delegates to the finders after it and adds a callback to the loader they return."""

    def find_spec(self, name, path=None, target=None):
        if name not in CALLBACKS:
            return None
        finders = list(sys.meta_path)  # the import system has already tried those before this one
        later = finders[finders.index(self) + 1 :] if self in finders else finders
        specs = (finder.find_spec(name, path, target) for finder in later if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _and_call_back(name, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


WATCHER = _Watcher()


def watch(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback(module)` after each execution of a module: after its import, after a reload, and now if it is
    already imported.

    There is one callback per module. It runs during the import and must not import modules that may be partially
    initialized.
    """
    CALLBACKS[name] = callback
    if WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, WATCHER)
    if name in sys.modules:
        callback(importlib.import_module(name))  # waits for an import in another thread


def unwatch(name: str) -> None:
    """Undo `watch`; no effect without a callback."""
    CALLBACKS.pop(name, None)
    if not CALLBACKS and WATCHER in sys.meta_path:
        sys.meta_path.remove(WATCHER)


def _and_call_back(name: str, execute: Callable[[ModuleType], None]) -> Any:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        callback = CALLBACKS.get(name)  # `unwatch` may have removed it
        if callback is not None:
            callback(module)

    return exec_module
