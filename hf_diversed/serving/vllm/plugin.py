"""The entry point `vllm.general_plugins: hf_diversed`, which vLLM calls in each of its processes, possibly twice.

It does nothing unless the engine's configuration names a verifier. Then it patches the process that admits requests
and those that sample, when the engine is built. Other releases of vLLM than `RELEASES` are refused.
"""

import functools
import importlib
import logging
import multiprocessing
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Any

from hf_diversed._after_import import watch
from hf_diversed.generation.hook import uninstall_hook


logger = logging.getLogger("vllm.hf_diversed")
RELEASES = ("0.32", "0.33")
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
    """Let vLLM's validation of sampling parameters, which runs before a request, also check the plugin's fields."""
    deployment = _deployment(vllm_config)
    if deployment is None:
        return
    logger.info("hf_diversed serves %s.", ", ".join(deployment.names))
    original = processor.validate_logits_processors_params

    def validate(params: Any) -> None:
        from vllm.exceptions import VLLMValidationError  # answered with HTTP 400

        original(params)
        try:
            deployment.request(params)
        except ValueError as error:
            raise VLLMValidationError(str(error)) from error

    processor.validate_logits_processors_params = validate


def _sample(name: str, served: Any, vllm_config: Any) -> None:
    """Let a model runner (`runner_v1`) or a sampler (`runner_v2`) use the deployment's verifiers."""
    deployment = _deployment(vllm_config)
    if deployment is not None:
        importlib.import_module(f"hf_diversed.serving.vllm.{name}").serve(served, deployment)


def _deployment(vllm_config: Any) -> Any:
    """Return the deployment of an engine's configuration, or None if it names none.

    Raises:
        ValueError: for a deployment that cannot be served, and for another release of vLLM.
    """
    from hf_diversed.serving.vllm.deployment import Deployment, read_config

    if read_config(vllm_config.additional_config) is None:
        return None
    found = version("vllm")
    if ".".join(found.split(".")[:2]) not in RELEASES:
        raise ValueError(
            f"hf_diversed supports vLLM {' and '.join(RELEASES)}, got {found}; install one of these, or a release of "
            "hf_diversed that supports it."
        )
    return Deployment.of(vllm_config)
