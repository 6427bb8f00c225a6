"""Rewards of the target model's own completions, which define the quality drop; measured once per row."""

from collections.abc import Sequence
from typing import Any

from hf_diversed.provenance import data_digest


Row = dict[str, Any]


class ReferenceRewards:
    """Mean reward of the target model's own completions by row of the dataset.

    The key is a digest of the whole row: a reward may read all of its columns, such as the reference answer.
    """

    def __init__(self) -> None:
        self.rewards: dict[str, float | None] = {}

    def __getitem__(self, row: Row) -> float | None:
        return self.rewards[data_digest(row)]

    def missing(self, rows: Sequence[Row]) -> list[Row]:
        """Return the distinct rows without a stored reward, in order."""
        return [row for key, row in {data_digest(row): row for row in rows}.items() if key not in self.rewards]

    def add(self, rewarded: Sequence[tuple[Row, float | None]]) -> None:
        """Add the mean reward of each row, given one (row, reward) pair per completion. The mean omits rewards that
        are None; if all are None, so is the mean."""
        by_key: dict[str, list[float]] = {}
        for row, reward in rewarded:
            known = by_key.setdefault(data_digest(row), [])
            if reward is not None:
                known.append(reward)
        self.rewards |= {key: sum(values) / len(values) if values else None for key, values in by_key.items()}
