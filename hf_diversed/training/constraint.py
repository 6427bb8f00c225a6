"""How much acceptance is worth: a coefficient that rises while quality holds and falls when it drops too far."""

import math

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class ConstraintCallback(TrainerCallback, ExportableState):
    """Keeps c, the reward that full acceptance is worth, and adapts it by dual ascent to "the reward may fall at most
    `max_drop` below the target's own".

    The drop is a running mean over the last `window` rollouts. After each batch of rollouts log c moves by at most
    `learning_rate` in proportion to the slack. Three guards keep it from winding up, or down, while the head is still
    on its way: c is bounded, a full step is taken only once the window is full, and c stays where it is while
    acceptance rises by itself, or the drop shrinks by itself. A fourth acts at once: what acceptance is worth shrinks
    to nothing as the last two batches go beyond the bound, the proportional term of arXiv 2007.03964. A head that
    starts near the draft rejects too little to learn by, and any acceptance term drives it further.
    Its state travels with every checkpoint.

    Args:
        max_drop: tolerated drop of the mean reward. coef: c at the start, bounded by `low` and `high`.
        fixed: leave c alone and only keep the running means.
    """

    def __init__(
        self,
        max_drop: float,
        coef: float,
        low: float,
        high: float,
        learning_rate: float,
        window: int,
        fixed: bool = False,
    ):
        self.max_drop, self.coef, self.low, self.high = max_drop, coef, low, high
        self.learning_rate, self.window, self.fixed = learning_rate, window, fixed
        self.batches: list[list[float]] = []  # [rollouts, mean drop, mean acceptance], the newest last

    def go_on_from(self, other: "ConstraintCallback") -> None:
        """Take over what a run has seen and where its c was; bounds and window stay this run's own."""
        self.batches = other.batches
        if not self.fixed:
            self.coef = min(max(other.coef, self.low), self.high)

    def update(self, num_rollouts: int, drop: float, acceptance: float) -> None:
        """Take note of one batch of rollouts: its mean drop against the target and its mean acceptance."""
        self.batches.append([num_rollouts, drop, acceptance])
        # Two at least: one batch that fills the window would show no trend, and c would never move.
        while len(self.batches) > 2 and sum(count for count, *_ in self.batches[1:]) >= self.window:
            self.batches.pop(0)
        if self.fixed:
            return
        slack = (self.max_drop - self.drop) / max(self.max_drop, 1e-3)
        if self._under_way(slack > 0):
            return
        move = self.learning_rate * min(max(slack, -1.0), 1.0) * self.filled
        self.coef = min(max(self.coef * math.exp(move), self.low), self.high)

    @property
    def worth(self) -> float:
        """c, less what the newest rollouts are beyond the bound: nothing where they miss it by `_LOST`."""
        if self.fixed or not self.batches:
            return self.coef
        excess = self._mean(self.batches[-2:], 1) - self.max_drop
        return self.coef * min(max(1.0 - excess / _LOST, 0.0), 1.0)

    @property
    def drop(self) -> float:
        """Running mean of the drop; nan before the first rollouts."""
        return self._mean(self.batches, 1)

    @property
    def filled(self) -> float:
        """Share of the window that has been seen."""
        return min(sum(count for count, *_ in self.batches) / self.window, 1.0)

    def _under_way(self, rise: bool) -> bool:
        """Whether what a rise of c is for, more acceptance, or a fall, less of a drop, is happening without it."""
        middle = len(self.batches) // 2
        if middle == 0:
            return True
        early, late = self.batches[:middle], self.batches[middle:]
        if rise:
            return self._mean(late, 2) > self._mean(early, 2) + _STALLED
        return self._mean(late, 1) < self._mean(early, 1) - _STALLED

    @staticmethod
    def _mean(batches: list[list[float]], column: int) -> float:
        total = sum(count for count, *_ in batches)
        return sum(batch[0] * batch[column] for batch in batches) / total if total else math.nan

    def state(self) -> dict:
        names = ("max_drop", "coef", "low", "high", "learning_rate", "window", "fixed")
        return {
            "args": {name: getattr(self, name) for name in names},
            "attributes": {"batches": [list(batch) for batch in self.batches]},
        }


_LOST = 0.3
_STALLED = 0.005  # a smaller change between the halves of the window is none
