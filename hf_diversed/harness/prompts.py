"""Encoding, length checks and batching of prompts."""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import model_facts


Prompt = str | list[dict[str, str]]


def render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], thinking: bool = False) -> str:
    """Return chat messages as text with special tokens; encode it with `add_special_tokens=False`.

    Args:
        thinking: the template's `enable_thinking`; without effect on templates that do not read it.
    """
    # Only where the template reads it, because tokenizers without a Jinja template refuse other arguments.
    switch = {"enable_thinking": thinking} if "enable_thinking" in str(tokenizer.chat_template) else {}
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch))


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], add_special_tokens: bool = True
) -> list[list[int]]:
    """Return the token ids of prompts, either all text or all chat messages.

    Args:
        add_special_tokens: False for texts that contain special tokens, such as those of `render`. Ignored for chat
            messages, whose template adds them.
    """
    if not prompts:
        return []
    texts = [prompt if isinstance(prompt, str) else render(tokenizer, prompt) for prompt in prompts]
    special = add_special_tokens and isinstance(prompts[0], str)
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=special)["input_ids"]]


def completion_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of the ids of a completion, without special tokens.

    Some tokenizers (SentencePiece) remove the first space of a text. At the start of a word it has no meaning, but it
    may be indentation of code. Therefore two or more spaces are kept, as decoded behind another token.
    """
    before = tokenizer.encode("x", add_special_tokens=False)
    start = str(tokenizer.decode(before, skip_special_tokens=True))
    text = str(tokenizer.decode([*before, *ids], skip_special_tokens=True)).removeprefix(start)
    return text if text.startswith("  ") else str(tokenizer.decode(ids, skip_special_tokens=True))


def check_context(
    name: str,
    lengths: Sequence[int],
    new_tokens: int,
    models: dict[str, PreTrainedModel],
    option: str = "max_completion_length",
) -> None:
    """Raise ValueError if a prompt has no tokens, or does not fit in the context of all models with its completion.

    The messages contain the names of the dataset, of the models, and of the option that sets `new_tokens`.
    """
    if 0 in lengths:
        raise ValueError(f"prompt {lengths.index(0)} of {name} has no tokens; leave it out.")
    contexts = {model: most for model, most in ((n, model_facts.max_positions(m)) for n, m in models.items()) if most}
    if not contexts:
        return
    narrowest = min(contexts, key=contexts.__getitem__)
    limit = contexts[narrowest] - new_tokens
    too_long = [index for index, length in enumerate(lengths) if length > limit]
    if too_long:
        first = too_long[0]
        raise ValueError(
            f"prompt {first} of {name} has {lengths[first]} tokens; at most {limit} fit, as the {narrowest} has "
            f"{contexts[narrowest]} positions and a completion takes up to {new_tokens}. {len(too_long)} of "
            f"{len(lengths)} prompts are too long: leave them out, shorten them, or lower {option}."
        )


def plan_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return the prompt indices of each batch, sorted by length to reduce padding; deterministic."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def left_padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return left-padded `input_ids` and `attention_mask`, long `[B, S]`, for tokenizers with any padding side."""
    width = max(map(len, rows))
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
