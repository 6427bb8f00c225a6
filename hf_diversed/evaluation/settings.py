"""Settings of an evaluation and the seeds of its calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hf_diversed.harness.sampling import Sampling


# Settings that results do not depend on.
_NO_IDENTITY = {"no_identity": True}


@dataclass(frozen=True)
class EvaluationSettings(Sampling):
    """Settings that all methods of an evaluation share, in addition to those of `Sampling`.

    Args:
        stop_strings: set by the task. max_new_tokens: maximum length; None for the task's limit.
        num_examples: use at most this many examples, from the first. samples_per_prompt: completions of each.
        seed: seed of sampling and of the bootstrap.
        add_special_tokens: False for prompts that contain them, such as those of a chat template.
        split: the split of the examples; recorded, and compared when a run continues.
        records: also store token records: TV, bias and relaxed tokens. Slower, with the same tokens.
        rank, world_size: this process runs every `world_size`-th batch, starting at `rank`.
        progress: True for a progress bar on standard error, False for no output, None for a bar on a terminal and one
            line per batch elsewhere. Unless False, the number of calls is printed before the first.

    Raises:
        ValueError: for values out of range, or several greedy samples of a prompt.
    """

    max_new_tokens: int | None = None  # type: ignore[assignment]  # replaced in `sampling`
    num_examples: int = field(default=500, metadata=_NO_IDENTITY)  # prompts are compared instead
    samples_per_prompt: int = 1
    seed: int = 0
    add_special_tokens: bool = True
    split: str | None = None
    records: bool = False
    rank: int = field(default=0, metadata=_NO_IDENTITY)
    world_size: int = field(default=1, metadata=_NO_IDENTITY)
    progress: bool | None = field(default=None, metadata=_NO_IDENTITY)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(num_examples=1, samples_per_prompt=1, seed=0, world_size=1)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"`rank` must lie in [0, {self.world_size - 1}] (world_size - 1), got {self.rank!r}.")
        if self.stop_strings:
            raise ValueError(f"`stop_strings` must be left to the task, got {self.stop_strings!r}.")
        if self.temperature == 0 and self.samples_per_prompt > 1:
            raise ValueError(
                f"`samples_per_prompt` must be 1 at temperature 0, got {self.samples_per_prompt}: greedy samples of "
                "one prompt are all the same."
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that results depend on, JSON-serialisable, without the stop strings of the task."""
        names = [item.name for item in fields(self) if not item.metadata.get("no_identity")]
        return {name: getattr(self, name) for name in names if name != "stop_strings"}

    def sampling(self, stop_strings: Sequence[str], max_new_tokens: int) -> Sampling:
        """Return sampling settings for a task with these stop strings and this limit."""
        own = {item.name: getattr(self, item.name) for item in fields(Sampling)}
        own |= {"stop_strings": tuple(stop_strings), "max_new_tokens": self.max_new_tokens or max_new_tokens}
        return Sampling(**own)

    def call_seed(self, batch: int, sample: int) -> int:
        """Return the seed of one call. It is the same for all methods, and any call can be repeated alone."""
        state = np.random.SeedSequence([self.seed, batch, sample]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))
