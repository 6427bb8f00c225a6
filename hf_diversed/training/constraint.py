"""The coefficient of acceptance in the reward, adapted to a bound on the quality drop."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


_MAX_EXCESS = 0.3  # excess drop at which `effective_coef` is 0
_STALLED = 0.005  # smaller changes between the halves of the window are ignored


@dataclass(eq=False)
class ConstraintCallback(TrainerCallback, ExportableState):
    """Adapts c, the reward of full acceptance, by dual ascent on the constraint `drop <= max_drop`.

    `drop` is the target model's own reward minus the reward of the rollouts, averaged over the last `window` rollouts.
    After each batch of rollouts log c changes by at most `learning_rate`, in proportion to the slack. Three guards
    prevent windup while the head is still changing: c is bounded, steps are scaled by the filled share of the window,
    and c is unchanged while acceptance already rises, or the drop already shrinks, as the step intends.

    `effective_coef`, which the loss uses, reacts at once: it decreases to 0 as the drop of the last two batches
    exceeds the bound (the proportional term of arXiv 2007.03964). With c itself, a head that follows the draft model
    would reject too few tokens to learn from, and the acceptance term would reduce rejections further.

    The state is stored in every checkpoint.

    Args:
        coef: initial c, between `low` and `high`.
        fixed: keep c constant and update only the running means.
    """

    max_drop: float
    coef: float
    low: float
    high: float
    learning_rate: float
    window: int
    fixed: bool = False
    # [rollouts, mean drop, mean acceptance] of each batch, the newest last.
    batches: list[list[float]] = field(default_factory=list, init=False)

    def objective(self, metrics: Mapping[str, float]) -> float:
        """Return `objective` of an evaluation, see `DiversedTrainer.evaluate`, from its other metrics."""
        if self.fixed:
            return metrics["reward"] + self.coef * metrics["acceptance_rate"]
        # The maximum of noisy means is biased upwards, so the standard error is added as a margin.
        bound = metrics["quality_drop"] + metrics["quality_drop_error"]
        return metrics["acceptance_rate"] if bound <= self.max_drop else -bound

    def continue_from(self, other: "ConstraintCallback") -> None:
        """Copy the batches and, unless c is fixed, the c of another run. Bounds and window are unchanged."""
        self.batches = other.batches
        if not self.fixed:
            self.coef = min(max(other.coef, self.low), self.high)

    def update(self, num_rollouts: int, drop: float, acceptance: float) -> None:
        """Record one batch of rollouts by its mean drop and mean acceptance, and adapt c."""
        self.batches.append([num_rollouts, drop, acceptance])
        # Keep at least two batches: a single one has no trend, so c would never change.
        while len(self.batches) > 2 and sum(count for count, *_ in self.batches[1:]) >= self.window:
            self.batches.pop(0)
        if self.fixed:
            return
        slack = (self.max_drop - self.drop) / max(self.max_drop, 1e-3)
        if self._is_moving(slack > 0):
            return
        step = self.learning_rate * min(max(slack, -1.0), 1.0) * self.filled
        self.coef = min(max(self.coef * math.exp(step), self.low), self.high)

    @property
    def effective_coef(self) -> float:
        """c, reduced linearly to 0 as the drop of the last two batches exceeds `max_drop` by up to `_MAX_EXCESS`."""
        if self.fixed or not self.batches:
            return self.coef
        excess = self._mean(self.batches[-2:], 1) - self.max_drop
        return self.coef * min(max(1.0 - excess / _MAX_EXCESS, 0.0), 1.0)

    @property
    def drop(self) -> float:
        """Running mean of the drop; NaN before the first rollouts."""
        return self._mean(self.batches, 1)

    @property
    def filled(self) -> float:
        """Filled share of the window, in [0, 1]."""
        return min(sum(count for count, *_ in self.batches) / self.window, 1.0)

    def _is_moving(self, rise: bool) -> bool:
        """Return whether acceptance already increases (if c would rise) or the drop decreases (if c would fall)."""
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
        return {
            "args": {item.name: getattr(self, item.name) for item in fields(self) if item.init},
            "attributes": {"batches": [list(batch) for batch in self.batches]},
        }
