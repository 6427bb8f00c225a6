"""Functions that `torch.compile` compiles without guards, and the keys that they are kept under between calls.

Evaluating guards takes longer than the forward of a small model. Instead, everything that may differ between calls is
an argument or part of the key, which a call computes once.
"""

import functools
import itertools
import threading
import time
import types
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import nn
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from hf_diversed import support
from hf_diversed.outputs import CompileStats


logger = support.get_logger(__name__)
_COMPILED_BY_UPSTREAM = ("cuda", "xpu", "neuron", "tpu")
# Attributes of modules that no forward reads, or that `fingerprint` reads in another way.
_IGNORED = frozenset(vars(nn.Module())) - {"training"} | {"generation_config", "warnings_issued"}
_NUMBERS = itertools.count()
Functions = dict[tuple, "CompiledFunction"]
_compiled: "weakref.WeakKeyDictionary[nn.Module, dict[Hashable, Functions]]" = weakref.WeakKeyDictionary()
_warned: "weakref.WeakKeyDictionary[nn.Module, set[str]]" = weakref.WeakKeyDictionary()
_compiling = threading.RLock()  # a compilation takes minutes
_compiled_lock = threading.Lock()


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


def warn_once(model: PreTrainedModel, message: str) -> None:
    """Log a warning about a model, once per model and message."""
    logged = _warned.setdefault(support.weak_key(model), set())
    if message not in logged:
        logged.add(message)
        logger.warning(message)


def clear_compiled() -> None:
    """Free all compiled decoding functions. Other functions that `torch.compile` has compiled compile again, too."""
    with _compiling, _compiled_lock:
        _compiled.clear()
        torch.compiler.reset()


def fingerprint(module: nn.Module) -> Hashable:
    """Return a key of everything in a module that its compiled forward contains and that may change between calls.

    It contains the identity, class and plain attributes of all submodules (the training flag, settings of adapters,
    the configuration with its attention implementation), and the types and shapes of all tensors. Tensors are read at
    run time, also those that are replaced; they are numbered, because a tensor that is used twice is compiled as one.
    """
    numbers: dict[int, int] = {}
    configs: dict[int, Hashable] = {}
    entries = []
    for part in module.modules():
        tensors = [*part._parameters.items(), *part._buffers.items()]
        is_root = part is module
        # In private attributes of the model itself, `generate` keeps its own caches.
        names = (name for name in vars(part) if name not in _IGNORED and not (is_root and name.startswith("_")))
        entries.append(
            (
                None if is_root else weakref.ref(support.viewed(part)),  # `generate` may run a shallow copy
                type(part),
                tuple((name, _plain(vars(part)[name], configs)) for name in names),
                tuple((k, numbers.setdefault(id(t), len(numbers)), _layout(t)) for k, t in tensors if t is not None),
            )
        )
    return tuple(entries)


def settings_of(*parts: object) -> Hashable:
    """Return a key of the settings of verifiers, heads and processors, but for those that are given per row."""
    entries: list[Hashable] = []
    for part in parts:
        per_row = getattr(part, "row_settings", ())
        attributes = ((name, value) for name, value in vars(part).items() if name not in per_row)
        own = tuple((name, _plain(value, {})) for name, value in attributes)
        entries.append(fingerprint(part) if isinstance(part, nn.Module) else (type(part), own))
    return tuple(entries)


def inputs_key(inputs: Iterable[Any]) -> Hashable:
    """Return a key of the tensors among the inputs of a function; others are None or part of another key.

    Equal tensors are numbered, because a tensor that is passed twice is compiled as one.
    """
    numbers: dict[int, int] = {}
    return tuple(
        (x.shape, x.dtype, x.device, numbers.setdefault(id(x), len(numbers))) if isinstance(x, torch.Tensor) else None
        for x in inputs
    )


def _layout(tensor: torch.Tensor) -> Hashable:
    kind = type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.is_inference()
    return (*kind, tensor.shape, tensor.stride())


def _plain(value: Any, configs: dict[int, Hashable]) -> Any:
    """Return numbers, texts and collections of them as a key, with their types, because 1 equals True.

    Of other objects, it is their type.
    """
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return type(value), value
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value), tuple(_plain(item, configs) for item in value)
    if isinstance(value, dict):
        return tuple((str(name), _plain(item, configs)) for name, item in value.items())
    if isinstance(value, torch.Tensor):
        return _layout(value)
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return value
    if isinstance(value, types.MethodType):
        return value.__func__, id(value.__self__)  # a reference in the key would keep a model alive
    if isinstance(value, functools.partial):
        return tuple(_plain(part, configs) for part in (value.func, value.args, value.keywords))
    if hasattr(value, "to_dict"):  # a configuration, which the modules of a model share
        if id(value) not in configs:
            configs[id(value)] = None  # in case it contains itself
            configs[id(value)] = _plain(vars(value), configs)
        return configs[id(value)]
    return type(value)


def _global_state(device: torch.device) -> Hashable:
    kind = device.type
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )


class CompiledFunction:
    """A function that is compiled at its first call, or runs uncompiled if that fails; `error` is the reason."""

    def __init__(self, function: Callable, config: CompileConfig):
        # A copy of the code object: dynamo keeps compiled code with it, and would run the same for every key.
        code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
        copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__)
        options = _options(config) | {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
        self.run: Callable = torch.compile(
            copy, backend=config.backend, options=options, fullgraph=True, dynamic=False
        )
        self._uncompiled, self.is_new, self.error = function, True, ""

    def compile(self, *args: Any) -> Any:
        """Compile the function and return its result."""
        with _compiling:
            try:
                result = self.run(*args)
            except Exception as error:
                result = self._uncompiled(*args)  # raises again what does not come from compiling
                if self.is_new:
                    self.run, self.error = self._uncompiled, str(error).splitlines()[0].rstrip(".")
            self.is_new = False
        return result


def _options(config: CompileConfig) -> dict[str, Any]:
    """Return the backend's options, or those of the mode: `torch.compile` accepts either a mode or options."""
    if config.options is not None or config.backend != "inductor":
        return dict(config.options or {})
    # The function that `torch.compile`'s documentation names for the options of a mode.
    return dict(torch._inductor.list_mode_options(config.mode or "default"))


class Compiler:
    """Runs the functions of one call, compiled or not.

    Args:
        config: how to compile; None to run functions uncompiled.
        target: the target model.

    Attributes:
        not_compiled: why a function runs uncompiled; empty if none does.
    """

    def __init__(self, config: CompileConfig | None, target: PreTrainedModel):
        self.config, self._target, self.not_compiled = config, target, ""
        name = support.model_name(target)
        self._name = type(target).__name__ + (f" ({name})" if name else "")
        self._state: Hashable = None
        self._replays = False  # whether functions are CUDA graphs, whose next run overwrites their results
        if config is not None:
            self._state = config.backend, config.mode, repr(config.options), _global_state(target.device)
            self._replays = target.device.type == "cuda" and bool(_options(config).get("triton.cudagraphs"))
        self._used: set[CompiledFunction] = set()
        self.stats = CompileStats()

    def kept_with(self, model: PreTrainedModel, key: Callable[[], Hashable]) -> Functions:
        """Return the functions of earlier calls with an equal key and state of this model; `run` adds new ones."""
        if self.config is None:
            return {}
        full_key = self._state, key()
        with _compiled_lock:
            return _compiled.setdefault(support.weak_key(model), {}).setdefault(full_key, {})

    def run(self, kept: Functions, function: Callable, shape: tuple, *args: Any) -> Any:
        """Return `function(*args)`. `shape` contains what is constant in the function: sizes, and other settings."""
        if self.config is None:
            return function(*args)
        key = function, *shape
        compiled = kept.get(key) or kept.setdefault(key, CompiledFunction(function, self.config))
        if self._replays:
            torch.compiler.cudagraph_mark_step_begin()
        if compiled.is_new:
            start = time.perf_counter()
            result = compiled.compile(*args)
            self.stats.add(CompileStats(num_compiled=int(not compiled.error), seconds=time.perf_counter() - start))
        else:
            result = compiled.run(*args)
        if compiled not in self._used:
            self._used.add(compiled)
            if compiled.error and not self.not_compiled:
                self.not_compiled = f"{function.__name__} of {self._name} is not compiled: {compiled.error}"
            self.stats.num_used += not compiled.error
        return [None if x is None else x.clone() for x in result] if self._replays else result

    def report(self) -> None:
        """Log the compilations of the call, and once, what could not be compiled."""
        if self.stats.num_compiled:
            number, seconds = self.stats.num_compiled, self.stats.seconds
            logger.warning(f"Compiled {number} functions for {self._name} in {seconds:.0f} s; later calls reuse them.")
        if self.not_compiled:
            warn_once(self._target, f"{self.not_compiled}.")
