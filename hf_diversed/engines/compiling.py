"""Compiled functions that outlive a call: what they are keyed by, how many there are, how long they took."""

import itertools
import sys
import time
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from hf_diversed import _compat
from hf_diversed.engines.buffers import pool
from hf_diversed.outputs import CompileStats


logger = _compat.get_logger(__name__)
MAX_COMPILED = 64  # per target; those used longest ago go first
_COMPILED_BY_UPSTREAM = ("cuda", "xpu", "neuron", "tpu")
_REPLAYING_DEVICES = ("cuda",)
_numbers = itertools.count()
_compiled: "weakref.WeakKeyDictionary[nn.Module, OrderedDict[Hashable, CompiledFunction]]" = (
    weakref.WeakKeyDictionary()
)
_lock = RLock()


def how_to_compile(config: GenerationConfig, device: torch.device) -> CompileConfig | None:
    """What a call with `cache_implementation="static"` compiles with; None for static shapes alone.

    On accelerators as upstream does, unless `disable_compile`. On a CPU only where a `compile_config` is given, as a
    first call takes a minute there. (Upstream wants its private `_compile_all_devices` set as well.)
    """
    if config.disable_compile:
        return None
    if config.compile_config is not None:
        return config.compile_config
    if device.type in _COMPILED_BY_UPSTREAM:
        return CompileConfig()
    logger.warning_once(
        f'cache_implementation="static" is not compiled on {device.type} unless compile_config= is given, for '
        "instance transformers.CompileConfig(); shapes are static and the code is eager, which gains nothing."
    )
    return None


class Shape(NamedTuple):
    """What a function is compiled for, beside what is fixed for a whole call: rows, columns, and the rest."""

    rows: int
    columns: int
    rest: Hashable


class CompiledFunction:
    """A function compiled for one set of shapes and settings, which its key spells out.

    Guards are what `torch.compile` checks at every call to see whether all that still holds, module by module
    of both models. With the key complete they have nothing left to find, and are dropped.

    Attributes:
        graphs: how often it was compiled; more than once would mean an incomplete key.
        seconds: what the first call took, compilation included; None before it.
    """

    def __init__(self, function: Callable, shape: Shape, config: CompileConfig):
        self.graphs = 0
        self.seconds: float | None = None
        self._what = f"{function.__name__} for {shape.rows} row(s) and {shape.columns} columns"
        self._first = RLock()
        options = _options(config) | {"guard_filter_fn": self._drop_guards}
        copy = _with_code_of_its_own(function)
        self._run = torch.compile(copy, backend=config.backend, options=options, fullgraph=True, dynamic=False)

    def _drop_guards(self, guards: list) -> list[bool]:
        self.graphs += 1  # asked once per compilation
        return [False] * len(guards)

    def __call__(self, *args):
        if self.seconds is not None:
            return self._run(*args)
        with self._first:
            start = time.perf_counter()
            if self.seconds is None:
                logger.warning(f"Compiling {self._what}, once per process ...")
            result = self._run(*args)
            if self.seconds is None:
                self.seconds = time.perf_counter() - start
                logger.warning(f"... compiled in {self.seconds:.0f} s.")
        return result


class Compiler:
    """Hands out a call's functions, compiled or as they are.

    Args:
        config: how to compile; None to leave functions as they are.
        target: the model that the compiled functions are kept for; they go when it goes.

    Attributes:
        replays: whether functions are CUDA graphs, which know memory by its address and write results to the same.
    """

    def __init__(self, config: CompileConfig | None, target: PreTrainedModel):
        self.config = config
        # `generate` may run a shallow twin of the model, which shares its parts and lasts for one call.
        self._kept_with = target.get_input_embeddings()
        self._config_key = None if config is None else freeze(vars(config))
        self.replays = config is not None and _replays(config) and target.device.type in _REPLAYING_DEVICES
        self._used: dict[Hashable, CompiledFunction] = {}
        self._new: list[CompiledFunction] = []

    def __call__(self, function: Callable, shape: Shape, fixed: Hashable) -> Callable:
        """`function`, compiled for `shape`; `fixed` is all else that it takes for granted (`freeze`)."""
        if self.config is None:
            return function
        near = (function, shape, id(fixed))
        if near not in self._used:
            self._used[near] = self._look_up(function, shape, fixed, self.config)
        return self._used[near]

    def knows(self, function: Callable, shape: Shape, fixed: Hashable) -> bool:
        """Whether a call for `shape` would start at once."""
        if self.config is None:
            return True
        with _lock:
            kept = _compiled.get(self._kept_with)
            found = None if kept is None else kept.get(self._key(function, shape, fixed))
        return found is not None and found.seconds is not None

    def stats(self) -> CompileStats:
        """What this call used, and what it had to compile."""
        return CompileStats(
            num_used=len(self._used),
            num_compiled=sum(each.graphs for each in self._new),
            num_recompiled=sum(max(each.graphs - 1, 0) for each in self._used.values()),
            seconds=sum(each.seconds or 0.0 for each in self._new),
        )

    def _look_up(self, function: Callable, shape: Shape, fixed: Hashable, config: CompileConfig) -> CompiledFunction:
        key = self._key(function, shape, fixed)
        with _lock:
            kept = _compiled.setdefault(self._kept_with, OrderedDict())
            found = kept.pop(key, None) or CompiledFunction(function, shape, config)
            kept[key] = found
            while len(kept) > MAX_COMPILED:
                kept.popitem(last=False)
        if found.seconds is None:
            self._new.append(found)
        return found

    def _key(self, function: Callable, shape: Shape, fixed: Hashable) -> Hashable:
        surroundings = (  # what else dynamo would guard
            torch.get_num_threads(),
            torch.is_inference_mode_enabled(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
        )
        return (function, shape, fixed, self._config_key, surroundings)


def cannot_be_traced(error: Exception) -> bool:
    """Whether an error says that some code is no graph: nothing of it has run then."""
    raised_by = sys.modules.get("torch._dynamo.exc")  # takes seconds to import, and without it nobody raised it
    return raised_by is not None and isinstance(error, raised_by.Unsupported)


def clear_compiled() -> None:
    """Forget every compiled decoding function, of all models, and the memory kept for them."""
    with _lock:
        _compiled.clear()
    pool.clear()


def _options(config: CompileConfig) -> dict[str, Any]:
    """The backend's options, where the config names a mode instead: `torch.compile` takes only one of them."""
    if config.options is not None or config.backend != "inductor":
        return dict(config.options or {})
    return dict(torch._inductor.list_mode_options(config.mode))


def _replays(config: CompileConfig) -> bool:
    return config.backend == "inductor" and bool(_options(config).get("triton.cudagraphs"))


def _with_code_of_its_own(function: Callable) -> Callable:
    """A copy whose code object is its own: dynamo keeps at most eight compilations of one."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)


def freeze(thing: Any, _seen: dict[int, int] | None = None) -> Hashable:
    """What of an object a compiled function takes for granted, hashable: types and plain values, all the way down.

    Of tensors only what tells them apart without looking inside: a compiled function reads them anew at every call.
    Of rules nothing that reaches them as a dial (`Verifier.row_settings`).
    """
    seen = {} if _seen is None else _seen
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if issubclass(kind, torch.Tensor):
        return (kind, thing.dtype, thing.device, thing.shape)
    if id(thing) in seen:
        return ("seen", seen[id(thing)])
    seen[id(thing)] = len(seen)
    return _freeze_parts(thing, kind, seen)


def _freeze_parts(thing: Any, kind: type, seen: dict[int, int]) -> Hashable:
    """The same of something made of others: a collection, a bound method, an object by its attributes."""
    if isinstance(thing, (list, tuple)):
        return (kind, *(freeze(item, seen) for item in thing))
    if isinstance(thing, dict):
        return (kind, *((str(name), freeze(item, seen)) for name, item in thing.items()))
    if isinstance(thing, (set, frozenset)):
        return (kind, *sorted(map(str, thing)))
    if isinstance(thing, types.MethodType):
        return (thing.__func__, freeze(thing.__self__, seen))
    if isinstance(thing, type) or not hasattr(thing, "__dict__"):
        return (kind, id(thing))
    unread = _compat.KEPT_BY_GENERATE if isinstance(thing, nn.Module) else getattr(thing, "row_settings", ())
    told: list[Any] = [kind]
    for name, item in vars(thing).items():
        # Of a module's own attributes most are empty dicts, of hooks.
        if name not in unread and not (isinstance(item, dict) and not item):
            told += (name, freeze(item, seen))
    return tuple(told)


_PLAIN = frozenset(
    {type(None), bool, int, float, str, bytes, torch.dtype, torch.device, type, types.FunctionType}
    | {types.BuiltinFunctionType, types.ModuleType, torch.Size}
)
