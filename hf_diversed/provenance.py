"""Where a number came from: command, code version, library versions, machine. Goes beside every result."""

import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


_PACKAGES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "safetensors", "huggingface-hub", "numpy")


def provenance(seed: int | None = None) -> dict:
    """JSON-ready record of this run: argv (without folders), commit, versions, device, threads, time, seed."""
    return {
        "argv": without_folders(sys.argv),
        "git_commit": _git_commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def without_folders(value: Any) -> Any:
    """A JSON value with the folders of absolute paths cut off, also behind "--option="; Hub ids and relative paths
    stay."""
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_folders(item) for item in value]
    return _without_folders(value) if isinstance(value, str) else value


def _without_folders(argument: str) -> str:
    option, equals, value = argument.rpartition("=")
    return f"{option}{equals}{Path(value).name if Path(value).is_absolute() else value}"


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
