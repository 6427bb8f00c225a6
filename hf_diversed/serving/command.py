"""The command that serves a pair with vLLM and a rule. Imports none of it."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


HOW_TO_INSTALL = (
    'vLLM is not installed: pip install "vllm>=0.32,<0.34" beside hf-diversed on a machine with a GPU; `make vllm` '
    "shows what its build for CPUs needs."
)


def serve_command(
    target: str, draft: str, settings: Mapping[str, Any], num_assistant_tokens: int, more: Sequence[str] = ()
) -> list[str]:
    """`vllm serve` with a draft model that samples, and what a deployment says about rules.

    Args:
        target, draft: folders, or ids on the Hub.
        settings: rule, head, dials and choices, as `Deployment` reads them; None among them is left out.
        num_assistant_tokens: drafts per round. more: further options of `vllm serve`.
    """
    speculative = {
        "method": "draft_model",
        "model": draft,
        "num_speculative_tokens": num_assistant_tokens,
        "draft_sample_method": "probabilistic",
    }
    named = {name: value for name, value in settings.items() if value is not None}
    return [
        *("vllm", "serve", target),
        *("--speculative-config", json.dumps(speculative)),
        *("--additional-config", json.dumps({"hf_diversed": named})),
        *more,
    ]


def program() -> str:
    """Where `vllm` lies: beside this Python, or on the path.

    Raises:
        RuntimeError: if it is not installed, with how to.
    """
    beside = str(Path(sys.executable).parent)
    found = shutil.which("vllm", path=beside) or shutil.which("vllm")
    if found is None or importlib.util.find_spec("vllm") is None:
        raise RuntimeError(HOW_TO_INSTALL)
    return found
