"""What each request of an engine wants, in the process that samples: read once, and never an exception."""

import logging
from collections.abc import Collection
from typing import Any

import torch

from hf_diversed.serving.vllm.admission import read_request
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.law import Asked


logger = logging.getLogger("vllm.hf_diversed")


def read_safely(deployment: Deployment, params: Any) -> Asked:
    """`read_request`, and lossless for what it refuses: whoever let that in, the engine goes on."""
    try:
        return read_request(deployment, params).at(float(params.temperature))
    except ValueError as error:
        logger.error("hf_diversed: a request that was not checked at admission decodes losslessly: %s", error)
        return Asked()


def any_relaxed(present: Collection[Asked]) -> bool:
    return any(asked.rule for asked in present)


def place_rules(deployment: Deployment, device: torch.device) -> None:
    """Bring the rules' heads to the device that samples."""
    for rule in deployment.rules:
        for part in rule.made_of():
            if isinstance(part, torch.nn.Module):
                part.to(device)
