"""The pair that a command works on."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_diversed.cli.comparison import Pair
from hf_diversed.zoo import load_demo_pair


def load_pair(target: str | None, draft: str | None, device: str | None = None, chat: bool = False) -> Pair:
    """Load a pair by name, or the embedded one.

    Raises:
        ValueError: if only one of the two is named.
    """
    if (target is None) != (draft is None):
        raise ValueError("--target and --draft go together: pass both, or neither for the embedded pair.")
    if target is None or draft is None:
        loaded = load_demo_pair()
        return Pair(loaded.target, loaded.draft, loaded.tokenizer, heads=loaded.heads)
    device = device or best_device()
    models = [AutoModelForCausalLM.from_pretrained(name, dtype="auto", device_map=device) for name in (target, draft)]
    tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
    return Pair(models[0].eval(), models[1].eval(), tokenizer, add_special_tokens=not chat)


def best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
