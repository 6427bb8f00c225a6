"""In which order prompts are rolled out."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class RolloutOrder(Sampler[int]):
    """Indices of prompts for a whole run: every group of `batch_size` is one update of all devices together.

    A group holds `batch_size / num_generations` prompts, each `num_generations` times in a row, and comes
    `num_iterations` times in a row, once for each update that its rollouts serve. Prompts are shuffled anew whenever
    all were seen; the order is a function of the seed, so a resumed run finds its place.
    """

    def __init__(
        self, num_prompts: int, batch_size: int, num_generations: int, num_iterations: int, num_updates: int, seed: int
    ):
        self.num_prompts, self.batch_size, self.num_generations = num_prompts, batch_size, num_generations
        self.num_iterations, self.num_updates, self.seed = num_iterations, num_updates, seed

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
