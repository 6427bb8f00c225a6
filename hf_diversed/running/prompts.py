"""Prompts as token ids, and as batches of them."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase


Prompt = str | list[dict[str, str]]


def render(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], add_generation_prompt: bool = True
) -> str:
    """Chat messages as text, its special tokens included: encode it without adding more."""
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt))


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], add_special_tokens: bool = True
) -> list[list[int]]:
    """Token ids of prompts, of which all are text or all are chat messages.

    Args:
        add_special_tokens: False for texts that bring their own, as `render` writes them. Messages always do.
    """
    if not prompts:
        return []
    texts = [prompt if isinstance(prompt, str) else render(tokenizer, prompt) for prompt in prompts]
    special = add_special_tokens and isinstance(prompts[0], str)
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=special)["input_ids"]]


def plan_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices of prompts by batch, prompts of similar length together: less padding, and the same plan every time."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask`, long `[B, S]`. Not the tokenizer's work: some pad right, or cannot."""
    width = max(map(len, rows))
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
