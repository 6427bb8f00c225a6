"""Rewards of the target model's own completions, which define the quality drop; measured once per row."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


Row = dict[str, Any]


class ReferenceRewards(TrainerCallback, ExportableState):
    """Mean reward of the target model's own completions by row of the dataset, stored in every checkpoint.

    The key is the whole row: a reward may read all of its columns, such as the reference answer.
    """

    def __init__(self) -> None:
        self.rewards: dict[str, float | None] = {}

    def __getitem__(self, row: Row) -> float | None:
        return self.rewards[_key(row)]

    def missing(self, rows: Sequence[Row]) -> list[Row]:
        """Return the distinct rows without a stored reward, in order."""
        return [row for key, row in {_key(row): row for row in rows}.items() if key not in self.rewards]

    def add(self, rewarded: Sequence[tuple[Row, float | None]]) -> None:
        """Add the mean reward of each row, given one (row, reward) pair per completion. The mean omits rewards that
        are None; if all are None, so is the mean."""
        by_key: dict[str, list[float]] = {}
        for row, reward in rewarded:
            known = by_key.setdefault(_key(row), [])
            if reward is not None:
                known.append(reward)
        self.rewards |= {key: sum(values) / len(values) if values else None for key, values in by_key.items()}

    def continue_from(self, other: "ReferenceRewards") -> None:
        self.rewards = other.rewards

    def state(self) -> dict:
        return {"args": {}, "attributes": {"rewards": dict(self.rewards)}}


def _key(row: Row) -> str:
    return hashlib.blake2b(json.dumps(row, sort_keys=True, default=_plain).encode(), digest_size=12).hexdigest()


def _plain(value: Any) -> Any:
    """Return an array as a list, and any other value as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
