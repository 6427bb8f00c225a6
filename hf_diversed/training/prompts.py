"""Length checks of prompts, and their order in training."""

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler
from transformers import PreTrainedModel

from hf_diversed import model_facts


def check_context(name: str, lengths: Sequence[int], new_tokens: int, models: dict[str, PreTrainedModel]) -> None:
    """Raise ValueError if a prompt has no tokens, or does not fit in the context of all models with its completion.

    The messages contain the names of the dataset and of the models.
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
            f"{len(lengths)} prompts are too long: leave them out, shorten them, or lower max_completion_length."
        )


class RolloutOrder(Sampler[int]):
    """Yields the prompt indices of a whole run; each group of `batch_size` indices is one update on all devices.

    A group contains `batch_size / num_generations` prompts, each repeated `num_generations` times in a row. Each group
    is repeated `num_iterations` times, once per update that uses its rollouts. Prompts are reshuffled after each pass.
    The order depends on the seed only, so a resumed run continues in the same order.
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
