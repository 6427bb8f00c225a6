"""The entry point `vllm.general_plugins: hf_diversed`, which vLLM calls in each of its processes, perhaps twice.

It does nothing until a deployment names a rule: that is set up as soon as an engine is built, in the process that
admits requests and in those that sample. A vLLM whose functions are not those that are known is refused by name, in
one line of its log, and goes on lossless.
"""

import functools
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
    """Be there when vLLM builds an engine. Imports neither vLLM nor torch."""
    if multiprocessing.parent_process() is not None:  # an engine's own process: nobody calls `generate` there
        uninstall_hook()
    watch(_ADMITTING, lambda module: _after_init(module, "InputProcessor", _admit))
    watch(_SAMPLING_V1, lambda module: _after_init(module, "GPUModelRunner", _sample_v1))
    watch(_SAMPLING_V2, lambda module: _after_init(module, "Sampler", _sample_v2))


def _after_init(module: ModuleType, name: str, then: Callable[[Any, Any], None]) -> None:
    """Have `then(instance, vllm_config)` called for every instance of a class, once it is initialised."""
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
    from vllm.exceptions import VLLMValidationError

    from hf_diversed.serving.vllm.admission import read_request

    deployment = _deployment(vllm_config, tells=True)
    if deployment is None:
        return
    logger.info("hf_diversed serves %s.", ", ".join(deployment.names))
    others = processor.validate_logits_processors_params

    def validate(params: Any) -> None:
        others(params)
        try:
            read_request(deployment, params)
        except ValueError as error:
            raise VLLMValidationError(str(error)) from error

    processor.validate_logits_processors_params = validate


def _sample_v1(runner: Any, vllm_config: Any) -> None:
    deployment = _deployment(vllm_config)
    if deployment is not None:
        from hf_diversed.serving.vllm import runner_v1

        runner_v1.serve(runner, deployment)


def _sample_v2(sampler: Any, vllm_config: Any) -> None:
    deployment = _deployment(vllm_config)
    if deployment is not None:
        from hf_diversed.serving.vllm import runner_v2

        runner_v2.serve(sampler, deployment)


def _deployment(vllm_config: Any, tells: bool = False) -> Any:
    """What the engine's configuration names, or None: where it names nothing, or this vLLM is not known.

    Args:
        tells: say the latter, in the one process that does; where there is none such, all do. Raises ValueError for
            what cannot be served.
    """
    from hf_diversed.serving.vllm.deployment import Deployment, named_settings
    from hf_diversed.serving.vllm.signatures import RELEASES, differences

    if named_settings(vllm_config.additional_config) is None:
        return None
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    found = differences(package)
    if found:
        if tells or not package.parent.joinpath(*_ADMITTING.split(".")).with_suffix(".py").is_file():
            version = getattr(importlib.import_module("vllm"), "__version__", "of unknown version")
            logger.error(
                "hf_diversed does not know this vLLM (%s), so its rules are off and decoding is lossless; install one "
                "of %s, or an hf_diversed made for it. Not as known: %s.",
                version,
                ", ".join(RELEASES),
                "; ".join(found),
            )
        return None
    return Deployment.of(vllm_config)
