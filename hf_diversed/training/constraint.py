"""The coefficient of acceptance in the reward, adapted to a bound on the quality drop."""

import math
from dataclasses import dataclass, field


MIN_COEF, MAX_COEF = 0.01, 1.5
MAX_STEP = 0.2  # of log c per batch of rollouts
WINDOW = 2048  # rollouts in the running means
MAX_EXCESS = 0.3  # excess drop at which `effective_coef` is 0
_STALLED = 0.005  # smaller changes between the halves of the window are ignored
_DROP, _ACCEPTANCE = 1, 2  # columns of `Constraint.batches`


@dataclass
class Constraint:
    """Adapts c, the reward of full acceptance, by dual ascent on the constraint `drop <= max_drop`.

    `drop` is the target model's own reward minus the reward of the rollouts, averaged over the last `WINDOW` rollouts.
    After each batch of rollouts log c changes by at most `MAX_STEP`, in proportion to the slack. Three guards
    prevent windup while the head is still changing: c is bounded, steps are scaled by the filled share of the window,
    and c does not rise while acceptance rises, nor fall while the drop shrinks.

    `effective_coef`, which the loss uses, reacts at once: it decreases to 0 as the drop of the last two batches
    exceeds the bound (the proportional term of arXiv 2007.03964). With c itself, a head that follows the draft model
    would reject too few tokens to learn from, and the acceptance term would reduce rejections further.

    Attributes:
        coef: c; first its initial value.
        batches: [rollouts, mean drop, mean acceptance] of each batch, the newest last.
    """

    max_drop: float
    coef: float
    batches: list[list[float]] = field(default_factory=list)

    def update(self, num_rollouts: int, drop: float, acceptance: float) -> None:
        """Record one batch of rollouts by its mean drop and mean acceptance, and adapt c."""
        self.batches.append([num_rollouts, drop, acceptance])
        # Keep at least two batches: a single one has no trend, so c would never change.
        while len(self.batches) > 2 and sum(count for count, *_ in self.batches[1:]) >= WINDOW:
            self.batches.pop(0)
        slack = (self.max_drop - self.drop) / max(self.max_drop, 1e-3)
        if self._is_moving(slack > 0):
            return
        filled = min(sum(count for count, *_ in self.batches) / WINDOW, 1.0)
        step = MAX_STEP * min(max(slack, -1.0), 1.0) * filled
        self.coef = min(max(self.coef * math.exp(step), MIN_COEF), MAX_COEF)

    @property
    def effective_coef(self) -> float:
        """c, reduced linearly to 0 as the drop of the last two batches exceeds `max_drop` by up to `MAX_EXCESS`."""
        if not self.batches:
            return self.coef
        excess = _mean(self.batches[-2:], _DROP) - self.max_drop
        return self.coef * min(max(1.0 - excess / MAX_EXCESS, 0.0), 1.0)

    @property
    def drop(self) -> float:
        """Running mean of the drop; NaN before the first rollouts."""
        return _mean(self.batches, _DROP)

    def _is_moving(self, rise: bool) -> bool:
        """Return whether acceptance already rises (if c would rise) or the drop falls (if c would fall)."""
        middle = len(self.batches) // 2
        if middle == 0:  # a single batch has no trend
            return True
        early, late = self.batches[:middle], self.batches[middle:]
        if rise:
            return _mean(late, _ACCEPTANCE) > _mean(early, _ACCEPTANCE) + _STALLED
        return _mean(late, _DROP) < _mean(early, _DROP) - _STALLED


def _mean(batches: list[list[float]], column: int) -> float:
    total = sum(count for count, *_ in batches)
    return sum(batch[0] * batch[column] for batch in batches) / total if total else math.nan
