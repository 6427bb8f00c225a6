"""Bootstrap clustered by prompt, vectorised: ratios, means, paired differences, distance to a curve. Pure numpy.

Paired differences of scores of 0 and 1 with one sample per prompt have bounds in closed form.

Samples of one prompt resemble each other, so prompts are drawn with replacement, each with all its samples. One matrix
of counts is used for all methods: they ran on the same prompts and are compared within a replicate.

Letters: P prompts, R replicates, K points of a curve.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


# Replicates in which the statistic is undefined are left out; if their share is larger, there is no interval.
MAX_OUTSIDE = 0.05
_Z = NormalDist().inv_cdf(0.975)  # for two-sided bounds of 95%
_ROUNDING = 1e-9  # statistics closer than this count as equal


@dataclass(frozen=True)
class Estimate:
    """A statistic with 95% bounds; NaN where it is not defined.

    Attributes:
        value: on the original prompts.
        low, high: the bounds.
    """

    value: float
    low: float
    high: float

    def record(self, name: str) -> dict:
        """Return the value and its bounds, as `name` and `name_ci`, for strict JSON: None where they are NaN."""
        value, low, high = (None if math.isnan(number) else number for number in (self.value, self.low, self.high))
        return {name: value, f"{name}_ci": None if low is None else [low, high]}


class Bootstrap:
    """Resamples of P prompts. A statistic is an array `[R + 1]`: on the original prompts, then once per replicate.

    Combine statistics by arithmetic on these arrays before `estimate`; differences are then paired.
    Bounds of `estimate` are percentiles, so a statistic that does not vary over the prompts (every answer wrong) gets
    bounds of width 0, which are meaningless; use `estimate_mean` there.

    Args:
        num_prompts: P. replicates: R. The counts take 8 (R + 1) P bytes.
        seed: seed of the resamples.
    """

    def __init__(self, num_prompts: int, replicates: int = 10_000, seed: int = 0):
        for name, value in (("num_prompts", num_prompts), ("replicates", replicates)):
            if value < 1:
                raise ValueError(f"`{name}` must be >= 1, got {value}.")
        generator = np.random.default_rng(seed)
        self.counts = np.ones((replicates + 1, num_prompts))
        for row in self.counts[1:]:  # one row at a time: all draws at once would take four times the memory
            row[:] = np.bincount(generator.integers(num_prompts, size=num_prompts), minlength=num_prompts)

    def totals(self, per_prompt: np.ndarray) -> np.ndarray:
        """Return sums over prompts: `[P]` -> `[R + 1]`."""
        return self.counts @ np.asarray(per_prompt, dtype=np.float64)

    def ratio(self, numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
        """Return the ratio of sums of `[P]` as `[R + 1]`; NaN where the denominators sum to 0.

        A mean is such a ratio: the sum of scores over the number of samples.
        """
        return _divide(self.totals(numerators), self.totals(denominators))

    @staticmethod
    def estimate(statistic: np.ndarray) -> Estimate:
        """Return value and percentile bounds of a statistic `[R + 1]`."""
        value, replicates = float(statistic[0]), statistic[1:]
        known = replicates[~np.isnan(replicates)]
        if np.isnan(value) or len(known) < (1.0 - MAX_OUTSIDE) * len(replicates):
            return Estimate(value, np.nan, np.nan)
        low, high = np.quantile(known, [0.025, 0.975])
        return Estimate(value, float(low), float(high))

    def estimate_mean(self, statistic: np.ndarray, low: float, high: float) -> Estimate:
        """Return `estimate` of a mean of values in [low, high]; also valid if all prompts have the same value.

        In that case all replicates are equal. The probability of any other value is then at most Wilson's upper
        bound for 0 of P, which bounds the mean in both directions. For values of 0 and 1 this is Wilson's interval
        with the prompts as trials.
        """
        found = self.estimate(statistic)
        if np.isnan(found.low) or np.ptp(statistic[~np.isnan(statistic)]) > _ROUNDING:
            return found
        unseen = wilson(0, self.counts.shape[1])[1]
        below, above = found.value - low, high - found.value
        return Estimate(found.value, found.value - unseen * below, found.value + unseen * above)

    def estimate_difference(
        self, first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
    ) -> Estimate:
        """Return the mean of `first` minus that of `second`: sums of scores in [0, 1], and numbers of scores, `[P]`.

        With one score of 0 or 1 per prompt, the bounds are those of `paired_bounds`. Percentiles of replicates cannot
        cross 0 if all prompts with different scores favour the same side, and are too narrow if few scores differ.
        """
        statistic = self.ratio(*first) - self.ratio(*second)
        if not all((counts == 1).all() and np.isin(sums, (0, 1)).all() for sums, counts in (first, second)):
            return self.estimate_mean(statistic, -1.0, 1.0)
        gains = first[0] - second[0]
        return Estimate(
            float(statistic[0]), *paired_bounds(int((gains > 0).sum()), int((gains < 0).sum()), len(gains))
        )


def paired_bounds(better: int, worse: int, pairs: int) -> tuple[float, float]:
    """Return 95% bounds on the difference of two paired proportions (Bonett and Price 2012, JEBS 37:479).

    Args:
        better, worse: numbers of pairs in which only the first, and only the second, is a success.
    """
    p, q = (better + 1) / (pairs + 2), (worse + 1) / (pairs + 2)
    half = _Z * math.sqrt((p + q - (p - q) ** 2) / (pairs + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return 95% bounds on a probability from independent trials (Wilson 1927, JASA 22:209); the width is never 0."""
    rate, scale = successes / trials, 1.0 + _Z * _Z / trials
    centre = (rate + _Z * _Z / (2 * trials)) / scale
    half = _Z / scale * math.sqrt(rate * (1.0 - rate) / trials + _Z * _Z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def interpolate(at: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Interpolate the piecewise linear curve through the points (x, y) of each replicate.

    Args:
        at: `[R + 1]`, where to read each replicate's curve. `x`, `y`: `[R + 1, K]`, its points in any order.

    Returns:
        `[R + 1]`; NaN beyond the curve's ends, never extrapolated. Where points have the same x, the mean of two
        neighbours.
    """
    order = np.argsort(x, axis=1, kind="stable")
    x, y = np.take_along_axis(x, order, 1), np.take_along_axis(y, order, 1)
    left = np.clip((x <= at[:, None]).sum(1) - 1, 0, x.shape[1] - 2)[:, None]
    (x0, x1), (y0, y1) = ([np.take_along_axis(values, left + k, 1)[:, 0] for k in (0, 1)] for values in (x, y))
    share = np.where(x1 > x0, _divide(at - x0, x1 - x0), 0.5)
    inside = (at >= x[:, 0]) & (at <= x[:, -1])
    return np.where(inside, y0 + share * (y1 - y0), np.nan)


def _divide(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    known = denominators != 0
    return np.where(known, numerators / np.where(known, denominators, 1.0), np.nan)
