"""The training stream as tensors: the examples of each step, and their collation into a batch."""

from collections.abc import Iterator
from itertools import count, islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from embedded.corpus import RESULTS_ONLY, STYLES, Example, training_examples
from embedded.recipe import Recipe


CHUNK = 16  # batches drawn together and sorted by length, to reduce padding
IGNORED = -100


def chunk_examples(recipe: Recipe, role: str, chunk: int) -> list[Example]:
    """Return the examples of steps `chunk * CHUNK` to `(chunk + 1) * CHUNK - 1`; each chunk has its own seed."""
    settings = recipe.models[role]
    stream = training_examples(recipe.families, STYLES[settings.style], f"{recipe.seed}/{role}/{chunk}")
    return list(islice(stream, CHUNK * settings.batch))


def batches(recipe: Recipe, role: str, tokenizer: PreTrainedTokenizerFast) -> Iterator[dict[str, Tensor]]:
    """Yield the batches of all steps: `input_ids`, `labels` int64 [B, S] and loss `weights` float [B, S]."""
    settings = recipe.models[role]
    for chunk in count():
        examples = chunk_examples(recipe, role, chunk)
        prompts = tokenizer([example.prompt for example in examples]).input_ids
        completions = tokenizer([example.completion for example in examples], add_special_tokens=False).input_ids
        rows = [
            (prompt + completion + [tokenizer.eos_token_id], _weigh(example, prompt, completion, recipe, tokenizer))
            for example, prompt, completion in zip(examples, prompts, completions)
        ]
        rows.sort(key=lambda row: len(row[0]))
        for index in torch.randperm(CHUNK, generator=torch.Generator().manual_seed(chunk)).tolist():
            yield _collate(rows[index * settings.batch : (index + 1) * settings.batch], tokenizer.pad_token_id)


def _weigh(
    example: Example, prompt: list[int], completion: list[int], recipe: Recipe, tokenizer: PreTrainedTokenizerFast
) -> list[float]:
    """Return the loss weights of prompt, completion and EOS: digits weigh more than words, random content little."""
    results_only = example.key.split("/")[0] in RESULTS_ONLY
    digits = set(tokenizer.convert_tokens_to_ids(list("0123456789")))
    equals = tokenizer.convert_tokens_to_ids("=")
    weights = [recipe.prompt_weight] * len(prompt)
    is_result = False
    for token in completion:
        is_result = token == equals or (is_result and token in digits)
        if token in digits and (is_result or not results_only):
            weights.append(recipe.number_weight)
        else:
            weights.append(recipe.prompt_weight if results_only else 1.0)
    return [*weights, 1.0]


def _collate(rows: list[tuple[list[int], list[float]]], pad_token_id: int) -> dict[str, Tensor]:
    """Pad rows of (ids, weights) on the right, so that causal attention needs no mask."""
    width = max(len(row) for row, _ in rows)
    ids = torch.tensor([row + [pad_token_id] * (width - len(row)) for row, _ in rows])
    weights = torch.tensor([weights + [0.0] * (width - len(weights)) for _, weights in rows])
    return {"input_ids": ids, "labels": ids.masked_fill(weights == 0, IGNORED), "weights": weights}
