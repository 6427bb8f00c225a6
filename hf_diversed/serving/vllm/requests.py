"""Settings of requests in the process that samples: read once, and never an exception."""

import logging
from collections.abc import Collection
from typing import Any

import torch

from hf_diversed.serving.vllm.admission import read_request
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.logits import RequestSettings


logger = logging.getLogger("vllm.hf_diversed")


def read_safely(deployment: Deployment, params: Any) -> RequestSettings:
    """Return `read_request`, or lossless settings for what it refuses, so that the engine goes on."""
    try:
        return read_request(deployment, params).at(float(params.temperature))
    except ValueError as error:
        logger.error("hf_diversed: a request that was not checked at admission decodes losslessly: %s", error)
        return RequestSettings()


def any_relaxed(present: Collection[RequestSettings]) -> bool:
    return any(settings.verifier for settings in present)


def move_verifiers(deployment: Deployment, device: torch.device) -> None:
    """Move the verifiers' heads to the device that samples."""
    for verifier in deployment.verifiers:
        for part in verifier.components():
            if isinstance(part, torch.nn.Module):
                part.to(device)
