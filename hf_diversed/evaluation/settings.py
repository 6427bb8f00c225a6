"""What an evaluation decodes under, and how its prompts fall into batches and seeds. Runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hf_diversed.generation.options import sampling_kwargs


# Not part of what results depend on.
_NO_IDENTITY = {"no_identity": True}


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings that all methods of an evaluation share.

    Args:
        num_examples: at most so many of the given examples, the first ones. samples_per_prompt: completions of each.
        seed: of sampling and of the bootstrap.
        temperature: 0 decodes greedily. top_k, top_p: 0 and 1 leave p and q the models' own laws.
        num_assistant_tokens: drafts per round. batch_size: prompts per call; it decides which coins a prompt gets, so
            it is part of the experiment.
        max_new_tokens: longest answer; None for the task's own.
        add_special_tokens: False for prompts that bring their own, as those of a chat template.
        split: where the examples come from; only noted, and compared when a run continues.
        records: also keep token records: tv, bias and relaxed tokens. Changes no token, costs time.
        rank, world_size: this process takes every `world_size`-th batch from `rank` on.
        progress: show a bar; None for "if this is a terminal".

    Raises:
        ValueError: on values out of range, or several greedy samples of a prompt.
    """

    num_examples: int = field(default=500, metadata=_NO_IDENTITY)  # the prompts themselves are compared
    samples_per_prompt: int = 1
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_assistant_tokens: int = 5
    batch_size: int = 16
    max_new_tokens: int | None = None
    add_special_tokens: bool = True
    split: str | None = None
    records: bool = False
    rank: int = field(default=0, metadata=_NO_IDENTITY)
    world_size: int = field(default=1, metadata=_NO_IDENTITY)
    progress: bool | None = field(default=None, metadata=_NO_IDENTITY)

    def __post_init__(self) -> None:
        at_least = {
            "num_examples": 1,
            "samples_per_prompt": 1,
            "seed": 0,
            "temperature": 0,
            "top_k": 0,
            "num_assistant_tokens": 1,
            "batch_size": 1,
            "max_new_tokens": 1,
            "world_size": 1,
        }
        for name, low in at_least.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # also refuses nan
                raise ValueError(f"`{name}` must be >= {low}, got {value!r}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must lie in (0, 1], got {self.top_p!r}; 1 turns it off.")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"`rank` must lie in [0, {self.world_size - 1}] (world_size - 1), got {self.rank!r}.")
        if self.temperature == 0 and self.samples_per_prompt > 1:
            raise ValueError(
                f"`samples_per_prompt` must be 1 at temperature 0, got {self.samples_per_prompt}: greedy samples of "
                "one prompt are all the same."
            )

    def identity(self) -> dict[str, Any]:
        """What results depend on, for strict JSON."""
        return {item.name: getattr(self, item.name) for item in fields(self) if not item.metadata.get("no_identity")}

    def generation_kwargs(self) -> dict[str, Any]:
        """How `generate` draws tokens; what else the model's generation config says is recorded with results."""
        return sampling_kwargs(self.temperature, self.top_k, self.top_p)

    def call_seed(self, batch: int, sample: int) -> int:
        """Seed of one call. No part of it is the method: methods share it, and any call can be repeated alone."""
        state = np.random.SeedSequence([self.seed, batch, sample]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))


def plan_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices of prompts by batch, prompts of similar length together: less padding, and the same plan every time."""
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
