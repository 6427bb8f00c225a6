"""The prompts of training: their rows and their order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler


@dataclass(eq=False)
class RolloutOrder(Sampler[int]):
    """Yields the prompt indices of a whole run; each group of `batch_size` indices is one update on all devices.

    A group contains `batch_size / num_generations` prompts, each repeated `num_generations` times in a row. Each group
    is repeated `num_iterations` times, once per update that uses its rollouts. Prompts are reshuffled after each pass.
    The order depends on the seed only, so a resumed run continues in the same order.
    """

    num_prompts: int
    batch_size: int
    num_generations: int
    num_iterations: int
    num_updates: int
    seed: int

    def __len__(self) -> int:
        return self.batch_size * self.num_updates

    def __iter__(self) -> Iterator[int]:
        prompts = self._shuffled()
        for _ in range(self.num_updates // self.num_iterations):
            chosen = [next(prompts) for _ in range(self.batch_size // self.num_generations)]
            group = [prompt for prompt in chosen for _ in range(self.num_generations)]
            for _ in range(self.num_iterations):
                yield from group

    def _shuffled(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.num_prompts, generator=generator).tolist()


def check_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError if rows of a dataset cannot be trained on; `name` is that of the dataset."""
    if not len(rows):
        raise ValueError(f'{name} must hold rows with a "prompt", got no row.')
    for row in rows:
        if "prompt" not in row:
            raise ValueError(f'{name} must hold rows with a "prompt", got one with {sorted(row)}.')
        if "completions" in row:
            raise ValueError(f"{name} must not have a column 'completions', which rewards receive; rename the column.")
