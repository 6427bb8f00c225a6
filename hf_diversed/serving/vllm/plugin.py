"""The entry point `vllm.general_plugins: hf_diversed`, which vLLM calls in each of its processes, possibly twice.

It does nothing unless the engine's configuration names a verifier. Then it patches the process that admits requests
and those that sample, when the engine is built. A vLLM with unknown functions is not patched: it decodes losslessly,
and one line of its log names the differences.
"""

import functools
import importlib
import importlib.util
import logging
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hf_diversed._after_import import watch
from hf_diversed.generation.patching import uninstall_hook


logger = logging.getLogger("vllm.hf_diversed")
_MARK = "_hf_diversed"
_ADMITTING = "vllm.v1.engine.input_processor"
_SAMPLING_V1 = "vllm.v1.worker.gpu_model_runner"
_SAMPLING_V2 = "vllm.v1.worker.gpu.sample.sampler"


def register() -> None:
    """Watch for vLLM's modules to be imported. Imports neither vLLM nor torch."""
    if multiprocessing.parent_process() is not None:  # a process of the engine, which never calls `generate`
        uninstall_hook()
    watch(_ADMITTING, lambda module: _after_init(module, "InputProcessor", _admit))
    watch(_SAMPLING_V1, lambda module: _after_init(module, "GPUModelRunner", functools.partial(_sample, "runner_v1")))
    watch(_SAMPLING_V2, lambda module: _after_init(module, "Sampler", functools.partial(_sample, "runner_v2")))


def _after_init(module: ModuleType, name: str, then: Callable[[Any, Any], None]) -> None:
    """Call `then(instance, vllm_config)` after every initialisation of a class."""
    owner = getattr(module, name, None)
    if owner is None or hasattr(owner.__init__, _MARK):
        return
    original = owner.__init__

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **named: Any) -> None:
        original(self, vllm_config, *args, **named)
        then(self, vllm_config)

    setattr(__init__, _MARK, True)
    owner.__init__ = __init__


def _admit(processor: Any, vllm_config: Any) -> None:
    from hf_diversed.serving.vllm import http
    from hf_diversed.serving.vllm.admission import read_request

    deployment = _deployment(vllm_config, admits=True)
    if deployment is None:
        return
    logger.info("hf_diversed serves %s.", ", ".join(deployment.names))
    original = processor.validate_logits_processors_params

    def validate(params: Any) -> None:
        original(params)
        with http.validation_errors():
            read_request(deployment, params)

    processor.validate_logits_processors_params = validate
    http.serve(deployment)


def _sample(name: str, served: Any, vllm_config: Any) -> None:
    """Let a model runner (`runner_v1`) or a sampler (`runner_v2`) use the deployment's verifiers."""
    deployment = _deployment(vllm_config)
    if deployment is not None:
        importlib.import_module(f"hf_diversed.serving.vllm.{name}").serve(served, deployment)


def _deployment(vllm_config: Any, admits: bool = False) -> Any:
    """Return the deployment of an engine's configuration; None if it names none, or this vLLM is not known.

    Args:
        admits: this process admits requests, and therefore logs an unknown vLLM. Without such a process, all log it.

    Raises:
        ValueError: for a deployment that cannot be served.
    """
    from hf_diversed.serving.vllm.deployment import Deployment, read_config
    from hf_diversed.serving.vllm.signatures import RELEASES, differences

    if read_config(vllm_config.additional_config) is None:
        return None
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    found = differences(package)
    if found:
        if admits or not package.parent.joinpath(*_ADMITTING.split(".")).with_suffix(".py").is_file():
            version = getattr(importlib.import_module("vllm"), "__version__", "of unknown version")
            logger.error(
                "hf_diversed does not support this vLLM (%s), so its verifiers are off and decoding is lossless; "
                "install one of %s, or a release of hf_diversed that supports it. Differences: %s.",
                version,
                ", ".join(RELEASES),
                "; ".join(found),
            )
        return None
    return Deployment.of(vllm_config)
