"""The command that serves a pair with vLLM and a verifier. Imports nothing of vLLM."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any


HOW_TO_INSTALL = (
    'vLLM is not installed: pip install "vllm>=0.32,<0.34" beside hf-diversed on a machine with a GPU; `make vllm` '
    "shows what its build for CPUs needs."
)
CHAT_NOTE = (
    "Chat requests (/v1/chat/completions) need a chat template: that of the target's tokenizer, or --chat-template "
    "FILE. /v1/completions needs none."
)
_MEMORY_OPTION, _MEMORY_FRACTION = "--gpu-memory-utilization", 0.92  # and its default in vLLM 0.32 and 0.33


def serve_command(
    target: str, draft: str, settings: Mapping[str, Any], num_assistant_tokens: int, more: Sequence[str] = ()
) -> list[str]:
    """Return the `vllm serve` command with a draft model that samples, and the deployment's settings.

    Args:
        target, draft: folders, or ids on the Hub.
        settings: verifier, head, choices and defaults of requests, as `Deployment.build` reads them.
        num_assistant_tokens: draft tokens per round.
        more: further options of `vllm serve`.
    """
    speculative = {
        "method": "draft_model",
        "model": draft,
        "num_speculative_tokens": num_assistant_tokens,
        "draft_sample_method": "probabilistic",
    }
    return [
        *("vllm", "serve", target),
        *("--speculative-config", json.dumps(speculative)),
        *("--additional-config", json.dumps({"hf_diversed": dict(settings)})),
        *more,
    ]


def memory_note(options: Sequence[str], free: float, total: float, device: str) -> str:
    """Return how much memory vLLM will reserve, whether that is free, and the option that changes it.

    Args:
        options: the options of `vllm serve`.
        free, total: the device's memory in bytes.
        device: how the note names it.
    """
    fraction = _memory_fraction(options)
    note = (
        f"vLLM reserves {fraction:g} of the memory of {device}: {fraction * total / 2**30:.1f} of "
        f"{total / 2**30:.1f} GiB; {free / 2**30:.1f} GiB are free."
    )
    if fraction * total <= free:
        return f"{note} {_MEMORY_OPTION} changes the fraction."
    return f"{note} It will not start: pass {_MEMORY_OPTION} {0.95 * free / total:.2f} or less, or free some memory."


def free_memory() -> tuple[float, float, str]:
    """Return free and total bytes of the GPU with the least free memory, or of the machine, and how to name it."""
    import torch

    if torch.cuda.is_available():
        gpus = [(*torch.cuda.mem_get_info(index), f"GPU {index}") for index in range(torch.cuda.device_count())]
        return min(gpus)
    import psutil

    memory = psutil.virtual_memory()
    return memory.available, memory.total, "this machine"


def program() -> str:
    """Return the path of `vllm`: in the folder of this Python, or on the PATH.

    Raises:
        RuntimeError: if it is not installed, with how to install it.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("vllm", path=beside) or shutil.which("vllm")
    if found is None or importlib.util.find_spec("vllm") is None:
        raise RuntimeError(HOW_TO_INSTALL)
    return found


def _memory_fraction(options: Sequence[str]) -> float:
    words = [word for option in options for word in option.replace("_", "-").split("=", 1)]
    for name, value in pairwise(words):
        if name == _MEMORY_OPTION:
            return float(value)
    return _MEMORY_FRACTION
