"""Does something once a module has been imported, and never imports it for that. Standard library only.

`import hf_diversed` has business with transformers, whose import takes seconds: who only asks for help shall not wait.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any


_CALLBACKS: dict[str, Callable[[ModuleType], None]] = {}


class _Watcher(MetaPathFinder):
    """Finds no module itself: lets the finders behind it find, and adds a callback to the loader's work."""

    def find_spec(self, name, path=None, target=None):
        if name not in _CALLBACKS:
            return None
        finders = list(sys.meta_path)  # those before this one have been asked
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        specs = (finder.find_spec(name, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _and_call_back(name, spec.loader.exec_module)  # type: ignore[method-assign]
        return spec


_WATCHER = _Watcher()


def watch(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Call `callback(module)` whenever the module has been executed: when it is imported, when it is reloaded, and now
    if it is there already. One callback a module; it runs inside the import and must not import what may be half done.
    """
    _CALLBACKS[name] = callback
    if _WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _WATCHER)
    if name in sys.modules:
        callback(importlib.import_module(name))  # of an import that another thread is at, this waits for the end


def unwatch(name: str) -> None:
    """Undo `watch`; does nothing if nobody watches."""
    _CALLBACKS.pop(name, None)
    if not _CALLBACKS and _WATCHER in sys.meta_path:
        sys.meta_path.remove(_WATCHER)


def _and_call_back(name: str, execute: Callable[[ModuleType], None]) -> Any:
    def exec_module(module: ModuleType) -> None:
        execute(module)
        callback = _CALLBACKS.get(name)  # it may be gone by now
        if callback is not None:
            callback(module)

    return exec_module
