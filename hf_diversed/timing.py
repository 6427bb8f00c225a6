"""Summaries of repeated timings: median, range, and whether the range is too wide. Standard library only."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


NOISE_LIMIT = 0.3  # the largest range, relative to the median, at which a ratio is still shown
TOO_NOISY = "too noisy to say"


@dataclass(frozen=True)
class Spread:
    """Median and range of repeated measurements of one quantity.

    Attributes:
        median, low, high: of the measurements, in their unit; NaN without any.
        count: number of measurements.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarize measurements of one quantity."""
        if not values:
            return cls(math.nan, math.nan, math.nan, 0)
        return cls(median(values), min(values), max(values), len(values))

    @property
    def is_noisy(self) -> bool:
        """Whether the range exceeds `NOISE_LIMIT` of the median, or there are fewer than two measurements."""
        return self.count < 2 or not self.high - self.low <= NOISE_LIMIT * self.median

    def __str__(self) -> str:
        return f"{_digits(self.median)} ({_digits(self.low)}-{_digits(self.high)})"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def paired_ratio(values: Sequence[float], reference: Sequence[float]) -> Spread:
    """Summarize the pairwise ratios of two quantities that were measured alternately.

    A change in machine load between repeats affects both quantities and cancels in their ratio.

    Raises:
        ValueError: if the numbers of measurements differ.
    """
    if len(values) != len(reference):
        raise ValueError(f"paired ratios need equally many measurements, got {len(values)} and {len(reference)}.")
    return Spread.of([value / other for value, other in zip(values, reference)])


def show_ratio(ratio: Spread) -> str:
    """Return a ratio as `1.52x (1.47-1.60)`, or `TOO_NOISY` if `is_noisy`."""
    if ratio.is_noisy:
        return TOO_NOISY
    return f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
