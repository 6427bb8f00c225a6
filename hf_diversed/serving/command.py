"""The command that serves a pair with vLLM and a verifier. Imports nothing of vLLM."""

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
CHAT_NOTE = (
    "Chat requests (/v1/chat/completions) need a chat template: that of the target's tokenizer, or --chat-template "
    "FILE. /v1/completions needs none."
)


def serve_command(
    target: str, draft: str | None, settings: Mapping[str, Any], num_assistant_tokens: int, more: Sequence[str] = ()
) -> list[str]:
    """Return the `vllm serve` command with a draft model that samples, if one is given, and the deployment's settings.

    Args:
        target, draft: folders, or ids on the Hub. Without a draft model, `more` configures the draft tokens.
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
        *(() if draft is None else ("--speculative-config", json.dumps(speculative))),
        *("--additional-config", json.dumps({"hf_diversed": dict(settings)})),
        *more,
    ]


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
