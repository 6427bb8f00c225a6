"""The training stream as tensors: which examples step `s` of a model sees, and how they become a batch."""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from hf_diversed.zoo.corpus import STYLES, Example, training_examples
from hf_diversed.zoo.recipe import Recipe


CHUNK = 16  # batches drawn together and sorted by length, so that little is padding
IGNORED = -100


def chunk_examples(recipe: Recipe, role: str, chunk: int) -> list[Example]:
    """Return the examples of steps `chunk * CHUNK` to `(chunk + 1) * CHUNK - 1`; each chunk has a seed of its own."""
    settings = recipe.models[role]
    stream = training_examples(recipe.families, STYLES[settings.style], f"{recipe.seed}/{role}/{chunk}")
    return list(islice(stream, CHUNK * settings.batch))


def batches(recipe: Recipe, role: str, tokenizer: PreTrainedTokenizerFast, start: int) -> Iterator[dict[str, Tensor]]:
    """Yield the batches from step `start` on: `input_ids`, `labels` int64 [B, S] and loss `weights` float [B, S]."""
    settings = recipe.models[role]
    step = start
    while True:
        examples = chunk_examples(recipe, role, step // CHUNK)
        prompts = tokenizer([example.prompt for example in examples]).input_ids
        completions = tokenizer([example.completion for example in examples], add_special_tokens=False).input_ids
        rows = sorted(zip(prompts, completions), key=lambda row: len(row[0]) + len(row[1]))
        order = torch.randperm(CHUNK, generator=torch.Generator().manual_seed(step // CHUNK)).tolist()
        for index in order[step % CHUNK :]:
            yield _collate(rows[index * settings.batch : (index + 1) * settings.batch], recipe, tokenizer)
            step += 1


def _collate(
    rows: list[tuple[list[int], list[int]]], recipe: Recipe, tokenizer: PreTrainedTokenizerFast
) -> dict[str, Tensor]:
    """Pad rows of (prompt, completion) on the right, where causal attention needs no mask, and weigh their tokens."""
    width = max(len(prompt) + len(completion) for prompt, completion in rows) + 1
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    weights = torch.zeros(len(rows), width)
    for row, (prompt, completion) in enumerate(rows):
        length = len(prompt) + len(completion) + 1
        ids[row, :length] = torch.tensor([*prompt, *completion, tokenizer.eos_token_id])
        weights[row, : len(prompt)] = recipe.prompt_weight
        weights[row, len(prompt) : length] = 1.0
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list("0123456789")))
    weights[torch.isin(ids, digits) & (weights == 1.0)] = recipe.number_weight
    return {"input_ids": ids, "labels": ids.masked_fill(weights == 0, IGNORED), "weights": weights}
