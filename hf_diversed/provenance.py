"""Where a number came from: command, code version, library versions, machine. Goes beside every result."""

import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


_PACKAGES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "safetensors", "huggingface-hub", "numpy")
_BLANK = "***"
_SECRET = re.compile(r"(token|key|secret|password)$", re.IGNORECASE)
_SECRET_IN_JSON = re.compile(r"""(["'][\w-]*(?:token|key|secret|password)["']\s*:\s*["'])[^"']*""", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")


def provenance(seed: int | None = None, device: torch.device | str | None = None) -> dict:
    """JSON-ready record of this run: argv (as `publishable`), commit, versions, device, threads, time, seed.

    Args:
        device: that the models were on; the default device if left out.
    """
    return {
        "argv": publishable(sys.argv),
        "git_commit": _git_commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "device": _device_name(torch.get_default_device() if device is None else torch.device(device)),
        "threads": torch.get_num_threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def publishable(value: Any) -> Any:
    """A JSON value without what is nobody's business: folders of absolute paths, also behind "--option=", and secrets,
    by the name of their option or key or by their looks. Hub ids and relative paths stay."""
    if isinstance(value, Mapping):
        return {
            key: _BLANK if _SECRET.search(str(key)) and isinstance(item, str) else publishable(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        before = [None, *value]
        return [
            _BLANK
            if isinstance(option, str) and option.startswith("-") and _SECRET.search(option)
            else publishable(item)
            for option, item in zip(before, value)
        ]
    if isinstance(value, Enum):
        return publishable(value.value)
    return _publishable_text(value) if isinstance(value, str) else value


def _publishable_text(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    if equals and _SECRET.search(option):
        return f"{option}={_BLANK}"
    argument = f"{option}{equals}{Path(value).name if Path(value).is_absolute() else value}"
    return _HUB_TOKEN.sub(_BLANK, _SECRET_IN_JSON.sub(rf"\1{_BLANK}", argument))


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"


def _git_commit() -> str | None:
    """Commit of the checkout this package lies in, "-dirty" if files differ from it; None outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
