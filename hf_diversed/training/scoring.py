"""Rewards and statistics of rollouts, and the quality drop against the target model on the same prompts."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from accelerate.utils import gather_object

from hf_diversed.tasks.rewards import RewardError, RewardSum
from hf_diversed.training.objective import accepted_share
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rollout import Rollouts


Rows = Sequence[dict[str, Any]]


class Scorer:
    """Computes rewards with TRL's calling convention.

    Attributes:
        references: rewards of the target model's own completions; None until they are needed.
    """

    def __init__(self, reward: RewardSum):
        self.reward = reward
        self.references: ReferenceRewards | None = None

    def rewards(self, rows: Rows, texts: list[str], completion_ids: list[list[int]]) -> dict[str, list]:
        """Return the rewards of completions: "reward", the weighted sum, and "rewards/<name>" of each function."""
        chat = [[{"role": "assistant", "content": text}] for text in texts]
        completions = texts if isinstance(rows[0]["prompt"], str) else chat
        names = {name: None for row in rows for name in row if name != "prompt"}  # rows of several tasks differ
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        columns |= {"prompts": [row["prompt"] for row in rows], "completion_ids": completion_ids}
        return self.reward(completions, **columns)

    def facts(self, rows: Rows, rollouts: Rollouts) -> dict[str, list]:
        """Return lists with one entry per rollout: rewards, drop against the target, accepted share, length and
        truncation; and "counts" of the whole batch."""
        facts = self.rewards(rows, rollouts.completions, rollouts.completion_ids)
        if self.references is not None:
            references = [self.references[row] for row in rows]
            facts["drop"] = [
                None if reference is None or reward is None else reference - reward
                for reference, reward in zip(references, facts["reward"])
            ]
        counts = rollouts.stats
        return facts | {
            "accepted": accepted_share(rollouts.decisions).tolist(),
            "length": [len(ids) for ids in rollouts.completion_ids],
            "clipped": [float(not finished) for finished in rollouts.finished],
            "counts": [(counts.num_accepted, counts.num_drafted, counts.num_emitted, counts.num_rounds)],
        }


def gathered(make: Callable[[], list]) -> list:
    """Return the items that `make` returns on all devices, in the order of their ranks. A `RewardError` on one device
    is raised on all, because the others would wait forever."""
    try:
        local = make()
    except RewardError as error:
        local = [error]
    items = gather_object(local)
    if failed := next((item for item in items if isinstance(item, RewardError)), None):
        raise failed
    return items


def merged(by_device: list[dict[str, list]]) -> dict[str, list]:
    """Concatenate the facts of all devices, in the order of their ranks."""
    return {name: [value for facts in by_device for value in facts[name]] for name in by_device[0]}


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for no values."""
    return sum(values) / len(values) if values else float("nan")


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
