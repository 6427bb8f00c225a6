"""Compiled functions that are kept across calls: reuse, eviction and statistics."""

import itertools
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from hf_diversed import support
from hf_diversed.engines.buffers import pool
from hf_diversed.outputs import CompileStats


logger = support.get_logger(__name__)
MAX_COMPILED = 64  # functions per target model; the least recently used are dropped first
_COMPILED_BY_UPSTREAM = ("cuda", "xpu", "neuron", "tpu")
REPLAYING_DEVICES = ("cuda",)
UNTRACEABLE_ROUND = "the verifier or a logits processor cannot be traced by torch.compile"
_GLOBAL_HOOKS = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
_numbers = itertools.count()
_compiled: "weakref.WeakKeyDictionary[nn.Module, list[CompiledFunction]]" = weakref.WeakKeyDictionary()
_untraceable: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()
_untraceable_rounds: "weakref.WeakKeyDictionary[nn.Module, set[str]]" = weakref.WeakKeyDictionary()
_warned: "weakref.WeakKeyDictionary[nn.Module, set[str]]" = weakref.WeakKeyDictionary()
_lock, _compiling = threading.RLock(), threading.RLock()


def how_to_compile(config: GenerationConfig, device: torch.device) -> CompileConfig | None:
    """Return the compile configuration of a call with `cache_implementation="static"`; None to run it uncompiled.

    Accelerators compile unless `disable_compile` is set, as in transformers. A CPU compiles only with a
    `compile_config`, because compilation takes a minute there. (transformers also requires its private
    `_compile_all_devices`.)
    """
    if config.disable_compile:
        return None
    if config.compile_config is not None:
        return config.compile_config
    if device.type in _COMPILED_BY_UPSTREAM:
        return CompileConfig()
    logger.warning_once(
        f'cache_implementation="static" is not compiled on {device.type} unless compile_config= is given, for '
        "example transformers.CompileConfig(). Shapes are static and the code runs eagerly, which gains nothing."
    )
    return None


class Shape(NamedTuple):
    """The shape that a function is compiled for: rows, columns, and all else that determines its arguments' shapes."""

    rows: int
    columns: int
    rest: Hashable


Key = tuple[Callable, Shape, Hashable]


class CompiledFunction:
    """A compiled function with the guards that `torch.compile` created for it.

    `torch.compile` evaluates the guards at every call. Here `accepts` evaluates the guards, and `__call__` runs
    dynamo's generated code without them, so a decoding call can evaluate them once. Guards and code are read from
    dynamo's cache entry, as in `torch._dynamo.aot_compile`.

    Attributes:
        key: what the function was compiled for; functions with equal keys differ in their code or guards.
        code: the result of `code_of` when the function was compiled; guards do not cover it.
        labels: labels of the calls that have used the function, see `Compiler.has`.
        seconds: duration of the compilation, including the first run.
    """

    def __init__(self, key: Key, code: tuple):
        self.key, self.code, self.labels, self.seconds = key, code, set[str](), 0.0
        self._function = _with_own_code(key[0])
        self._names = self._function.__code__.co_varnames
        self._run: Callable = self._function

    def compile(self, config: CompileConfig, args: tuple) -> Any:
        """Compile the function for these arguments, and return its result for them."""
        function, shape, _ = self.key
        description = f"{function.__name__} for {shape.rows} row(s) and {shape.columns} columns"
        logger.warning(f"Compiling {description}, once per process ...")
        start = time.perf_counter()
        run = torch.compile(
            self._function, backend=config.backend, options=_options(config), fullgraph=True, dynamic=False
        )
        weakref.finalize(self, _free, self._function.__code__).atexit = False
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
            result = run(*args)
        for entry in self._entries():
            self._run = types.FunctionType(entry.code, self._function.__globals__, self._function.__name__)
        self.seconds = time.perf_counter() - start
        logger.warning(f"... compiled in {self.seconds:.0f} s.")
        return result

    def accepts(self, code: tuple, args: tuple) -> bool:
        """Return whether the code is unchanged and all guards hold for these arguments in the current global state."""
        if code != self.code:
            return False
        if self._run is self._function:  # torch.compile is disabled in this process
            return True
        values = dict(zip(self._names, args))
        return any(entry.guard_manager.check(values) for entry in self._entries())

    def __call__(self, *args: Any) -> Any:
        return self._run(*args)

    def _entries(self) -> list:
        return torch._dynamo.eval_frame._debug_get_cache_entry_list(self._function)


def _free(code: types.CodeType) -> None:
    """Free dynamo's cache entries and guards of a code object.

    A cache entry refers to the code object that contains it, a cycle that the garbage collector does not detect. If a
    guard compares an object by identity, such as a module, a finalizer of that object keeps the guards alive.
    """
    managers = [entry.guard_manager for entry in torch._dynamo.eval_frame._debug_get_cache_entry_list(code)]
    torch._dynamo.eval_frame.remove_from_cache(code)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        call = finalizer.peek()  # (object, function, arguments), or None
        owner = getattr(getattr(call and call[1], "func", None), "__self__", None)
        if any(getattr(owner, "guard_manager", None) is manager for manager in managers):
            finalizer.detach()


class Compiler:
    """Runs the functions of a call, compiled or uncompiled.

    Args:
        config: how to compile; None to run functions uncompiled.
        target: the model that the compiled functions are kept for; they are freed with it.
        check_every_run: whether to evaluate the guards at every run, for calls in which user code may change what the
            guards check; otherwise they are evaluated at the first run of each function in a call.

    Attributes:
        replays: whether functions are CUDA graphs, which read and write memory at fixed addresses.
        stopped_by: why the call stopped compiling; None if it did not.
    """

    def __init__(self, config: CompileConfig | None, target: PreTrainedModel, check_every_run: bool = False):
        self.config, self._target = config, target
        self._kept_with = support.weak_key(target)
        self._config_key = None if config is None else (config.backend, config.mode, repr(config.options))
        self._check_every_run = check_every_run
        self.replays = config is not None and replays(config) and target.device.type in REPLAYING_DEVICES
        self.stopped_by: str | None = None
        self._used: dict[tuple[Key, int], CompiledFunction] = {}  # by key and id of the first argument
        self._stats = CompileStats()
        self._has: dict[tuple[Key, str], bool] = {}
        self._codes: dict[tuple, tuple] = {}  # by function and its parts

    def run(self, function: Callable, parts: Sequence[object], shape: Shape, label: str, *args: Any) -> Any:
        """Return `function(*args)`. Code and guards are checked once in a call for each first argument.

        Args:
            parts: the models, verifiers, heads and processors that the function runs.
            label: names the kind of call for later calls of `has`.
            args: the first one is a model, or the settings of a call with both models.
        """
        if self.config is None:
            return function(*args)
        key = (function, shape, self._config_key)
        compiled = self._used.get((key, id(args[0])))
        if compiled is not None and not self._check_every_run:
            return compiled(*args)
        code = self._code(function, parts)
        if compiled is not None and compiled.accepts(code, args):
            return compiled(*args)
        compiled = self._find(key, code, args)
        if compiled is None:
            with _compiling:  # another thread may have compiled the function meanwhile
                compiled = self._find(key, code, args)
                if compiled is None:
                    return self._compile(key, code, label, args, self.config)
        compiled.labels.add(label)
        self._used[key, id(args[0])] = compiled
        return compiled(*args)

    def has(self, function: Callable, shape: Shape, label: str) -> bool:
        """Return whether a call with this label has run the function for this shape, so it is probably compiled.

        Only the guards can determine this, and they need the arguments. A wrong result affects speed, not tokens.
        """
        if self.config is None:
            return True
        key = (function, shape, self._config_key)
        if (key, label) not in self._has:
            with _lock:
                functions = _compiled.get(self._kept_with, [])
                self._has[key, label] = any(each.key == key and label in each.labels for each in functions)
        return self._has[key, label]

    def stop(self, model: PreTrainedModel, error: Exception) -> None:
        """Stop compiling in this call and in later ones with this model, which dynamo cannot trace."""
        self.config = None
        self.stopped_by = f"torch.compile cannot trace {describe(model)}: {str(error).splitlines()[0].rstrip('.')}"
        _untraceable[support.weak_key(model)] = self.stopped_by
        warn_once(self._target, f'cache_implementation="static" has no effect: {self.stopped_by}.')

    def stats(self) -> CompileStats:
        """Return the numbers of functions that this call used and compiled."""
        return replace(self._stats, num_used=len(set(self._used.values())))

    def _code(self, function: Callable, parts: Sequence[object]) -> tuple:
        if self._check_every_run:
            return code_of(function, parts)
        key = (function, *map(id, parts))
        if key not in self._codes:
            self._codes[key] = code_of(function, parts)
        return self._codes[key]

    def _find(self, key: Key, code: tuple, args: tuple) -> CompiledFunction | None:
        with _lock:
            functions = _compiled.setdefault(self._kept_with, [])
            accepting = next((each for each in functions if each.key == key and each.accepts(code, args)), None)
            if accepting is not None:
                functions.remove(accepting)
                functions.insert(0, accepting)
        return accepting

    def _compile(self, key: Key, code: tuple, label: str, args: tuple, config: CompileConfig) -> Any:
        new = CompiledFunction(key, code)
        result = new.compile(config, args)
        new.labels.add(label)
        with _lock:
            functions = _compiled.setdefault(self._kept_with, [])
            functions.insert(0, new)
            del functions[MAX_COMPILED:]
        self._stats.add(CompileStats(0, 1, int((key, id(args[0])) in self._used), new.seconds))
        self._used[key, id(args[0])] = new
        self._has.clear()
        return result


def code_of(function: Callable, parts: Sequence[object]) -> tuple:
    """Return weak references to what a compiled function contains and guards do not cover.

    These are the functions of the parts' classes with their code objects, and the global hooks of modules. Two results
    are equal if nothing was replaced or edited between them.
    """
    hooks = [hook for kind in _GLOBAL_HOOKS for hook in getattr(nn.modules.module, f"_global_{kind}").values()]
    functions = [function, *support.class_functions(*parts), *hooks]
    codes = [each.__code__ for each in functions if hasattr(each, "__code__")]
    return tuple(each if type(each).__weakrefoffset__ == 0 else weakref.ref(each) for each in (*functions, *codes))


def why_untraceable(*models: PreTrainedModel | None) -> str | None:
    """Return why one of the models could not be compiled in an earlier call; None if there was no such failure."""
    reasons = (_untraceable.get(support.weak_key(model)) for model in models if model is not None)
    return next((reason for reason in reasons if reason is not None), None)


def is_untraceable(target: PreTrainedModel, label: str) -> bool:
    """Return whether tracing of a round failed in an earlier call with this label."""
    return label in _untraceable_rounds.get(support.weak_key(target), ())


def record_untraceable(target: PreTrainedModel, label: str) -> None:
    """Prevent later calls with this label from tracing a round."""
    _untraceable_rounds.setdefault(support.weak_key(target), set()).add(label)


def describe(model: PreTrainedModel) -> str:
    """Return the model's class and, if it has one, its name or path, for messages."""
    name = support.model_name(model)
    return type(support.base_model(model)).__name__ + (f" ({name})" if name else "")


def warn_once(model: PreTrainedModel, message: str) -> None:
    """Log a warning about a model, once per model and message."""
    logged = _warned.setdefault(support.weak_key(model), set())
    if message not in logged:
        logged.add(message)
        logger.warning(message)


def cannot_be_traced(error: Exception) -> bool:
    """Return whether dynamo raised the error for code that it cannot trace. No part of that code has run."""
    dynamo_errors = sys.modules.get("torch._dynamo.exc")  # importing it takes seconds
    return dynamo_errors is not None and isinstance(error, dynamo_errors.Unsupported)


def clear_compiled() -> None:
    """Free all compiled decoding functions of all models, and their memory."""
    with _lock:
        _compiled.clear()
        _untraceable.clear()
        _untraceable_rounds.clear()
    pool.clear()


def _options(config: CompileConfig) -> dict[str, Any]:
    """Return the backend's options, or those of the mode: `torch.compile` accepts either a mode or options."""
    if config.options is not None or config.backend != "inductor":
        return dict(config.options or {})
    return dict(torch._inductor.list_mode_options(config.mode or "default"))


def replays(config: CompileConfig) -> bool:
    return config.backend == "inductor" and bool(_options(config).get("triton.cudagraphs"))


def _with_own_code(function: Callable) -> types.FunctionType:
    """Return a copy with its own code object: dynamo keeps at most eight compiled functions per code object."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
