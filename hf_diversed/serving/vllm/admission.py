"""Checks of a request's settings before it runs: an exception inside a sampler would end the engine.

Reads vLLM's sampling parameters by field name and imports nothing of vLLM.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hf_diversed import head_settings
from hf_diversed.serving.vllm.deployment import SETTINGS, Deployment, no_setting
from hf_diversed.serving.vllm.logits import RequestSettings


PREFIX = "diversed_"  # of the plugin's fields in `vllm_xargs`
FIELDS = ("verifier", *SETTINGS)
_ALLOWED = (
    f"Allowed in `vllm_xargs`: {', '.join(PREFIX + name for name in FIELDS)}; for example "
    f'"vllm_xargs": {{"{PREFIX}strictness": 0.7}}.'
)


def read_request(deployment: Deployment, params: Any) -> RequestSettings:
    """Return the settings of a request from its vLLM `SamplingParams`. Raises ValueError for unknown fields and values
    out of range."""
    values = _read_fields(params.extra_args or {})
    chosen = values.pop("verifier", None)
    index = 0 if chosen is None else _index(deployment, chosen)
    if index is None:
        if values:
            raise ValueError(no_setting("lossless", sorted(values), frozenset(), _spell))
        return RequestSettings()
    known = deployment.settings_of(index)
    values = {name: value for name, value in deployment.defaults.items() if name in known} | values
    settings = deployment.read(index, values, _spell)
    return settings.at(float(params.temperature))


def check_top_level(fields: Iterable[str]) -> None:
    """Raise ValueError if a top-level field of a request belongs in `vllm_xargs`; vLLM ignores it."""
    for name in fields:
        if _is_ours(name):
            raise ValueError(f"`{name}` has no effect at the top level of a request. {_ALLOWED}")


def _read_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plugin's fields of `vllm_xargs`, by name without the prefix; refuse unknown and unprefixed ones."""
    fields = {}
    for name, value in extra.items():
        plain = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and plain in FIELDS:
            fields[plain] = value
        elif _is_ours(name):
            raise ValueError(f"`{name}` is not a field of `vllm_xargs`. {_ALLOWED}")
    return fields


def _is_ours(name: str) -> bool:
    """Return whether a field is meant for the plugin: `diversed_*`, or the name of a setting without the prefix."""
    return name.lower().replace("-", "_").startswith(PREFIX) or name in ("verifier", *head_settings.SETTINGS)


def _spell(name: str) -> str:
    return PREFIX + name


def _index(deployment: Deployment, name: Any) -> int | None:
    """Return the index of the verifier that a request names; None for lossless, which is always allowed."""
    if name in deployment.names:
        return deployment.names.index(name)
    if name == "lossless":
        return None
    known = ", ".join(dict.fromkeys((*deployment.names, "lossless")))
    raise ValueError(f"`{PREFIX}verifier` must be one of {known}, got {name!r:.200}; `choices` adds more.")


logger = logging.getLogger("vllm.hf_diversed")


def read_safely(deployment: Deployment, params: Any) -> RequestSettings:
    """Return `read_request`, or lossless settings for what it refuses, so that the engine goes on."""
    try:
        return read_request(deployment, params)
    except ValueError as error:
        logger.error("hf_diversed: a request that was not checked at admission decodes losslessly: %s", error)
        return RequestSettings()


def move_verifiers(deployment: Deployment, device: torch.device) -> None:
    """Move the verifiers' heads to the device that samples."""
    for verifier in deployment.verifiers:
        for part in verifier.components():
            if isinstance(part, torch.nn.Module):
                part.to(device)
