"""The pair that a command works on."""

import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_diversed.cli.comparison import Pair
from hf_diversed.zoo import load_demo_pair


Device = torch.device | str


def load_pair(target: str | None, draft: str | None, device: Device | None = None, chat: bool = False) -> Pair:
    """Load a pair by name, or the embedded one with its heads, onto a device; the best one if left out.

    Raises:
        ValueError: if only one of the two is named, or for `chat` and a tokenizer without a chat template; both
            before a named model is loaded.
    """
    if (target is None) != (draft is None):
        raise ValueError("--target and --draft go together: pass both, or neither for the embedded pair.")
    device = device or best_device()
    if target is None or draft is None:
        pair = _embedded_pair(device)
        _check_chat(pair.tokenizer, chat)
        return pair
    tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
    _check_chat(tokenizer, chat)
    models = [AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map=device) for name in (target, draft)]
    return Pair(models[0].eval(), models[1].eval(), tokenizer, add_special_tokens=not chat)


def best_device() -> str:
    """The accelerator, of several the one that belongs to this process of `accelerate launch` or torchrun."""
    if torch.cuda.is_available():
        # A launcher may show each process its own GPU alone, whatever its rank.
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _embedded_pair(device: Device) -> Pair:
    loaded = load_demo_pair()
    loaded.target.to(device)
    loaded.draft.to(device)
    return Pair(
        loaded.target,
        loaded.draft,
        loaded.tokenizer,
        heads={task: head.to(device) for task, head in loaded.heads.items()},
    )


def _check_chat(tokenizer, chat: bool) -> None:
    if chat and tokenizer.chat_template is None:
        raise ValueError(
            "--chat needs a tokenizer with a chat template, and the target's has none; leave it out, or name "
            "instruction-tuned models."
        )
