"""Expected acceptance, bias and speedup of verification, and the best gamma.

Distributions are float `[..., V]` that sum to one.
Sources: arXiv 2604.07622 (mixtures), arXiv 2211.17192 (speedup, section 3).
Letters: G drafted positions, V vocabulary.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from hf_diversed.sampling import total_variation


def expected_acceptance(p: torch.Tensor, q: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Return the acceptance probability under `v = weight * p + (1 - weight) * q`: `1 - weight TV(p, q)`.

    Args:
        p, q: float `[..., V]`, the target and the draft distribution. weight: float, or tensor `[...]`, on the target.
    """
    return 1.0 - weight * total_variation(p, q)


def reject_and_bias(v: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least rejection probability of a verifier that emits `v`, TV(q, v), and its bias TV(v, p): `[...]`.

    The sum of both is at least TV(q, p), with equality if every v(x) lies between p(x) and q(x), as for mixtures. With
    weight w they are w TV(p, q) and (1 - w) TV(p, q).
    """
    return total_variation(q, v), total_variation(v, p)


@dataclass(frozen=True)
class ForwardTimes:
    """Durations of the parts of a round, in seconds or relative to the target: `ForwardTimes(1.0, cost_ratio)`.

    Args:
        target: forward pass of the target on one token, which is the time per token of the target alone.
        draft: forward pass of the draft model on one token.
        extra_position: time that each draft token adds to the target's forward pass; about 0 if memory-bound.
        overhead: everything else in a round.

    Raises:
        ValueError: unless all are finite, `target` is positive and the others are not negative.
    """

    target: float
    draft: float
    extra_position: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (value > 0.0 or (value == 0.0 and name != "target")) or math.isinf(value):
                bound = "> 0" if name == "target" else ">= 0"
                raise ValueError(f"`{name}` must be finite and {bound}, got {value!r}; it is a time.")

    def round(self, gamma: int) -> float:
        """Return the time of a round with `gamma` draft tokens."""
        return gamma * (self.draft + self.extra_position) + self.target + self.overhead


def expected_speedup(accepted_length: float, gamma: int, times: ForwardTimes) -> float:
    """Return the speedup over the target alone: `(accepted_length + 1) * target / time of a round`.

    Args:
        accepted_length: accepted draft tokens per round, measured or expected, without the residual or bonus token.
    """
    return (accepted_length + 1.0) * times.target / times.round(gamma)


def best_gamma(
    survival: Sequence[float], times: ForwardTimes, gammas: Collection[int] | None = None
) -> tuple[int, float]:
    """Return gamma with the highest expected speedup, and the speedup; below 1 the target alone is faster.

    Args:
        survival: probability that the first n draft tokens are all accepted, n = 1..G: `accepted_per_position` of an
            evaluation, or `[rate**n ...]` for i.i.d. positions.
        gammas: numbers of draft tokens to compare, between 1 and G; None for all.
    """
    if not survival or not all(0.0 <= below <= above <= 1.0 for above, below in zip([1.0, *survival], survival)):
        raise ValueError(
            f"`survival` must be a non-increasing list of probabilities, got {list(survival)!r}; entry n is the "
            "probability that the first n draft tokens are all accepted."
        )
    chosen = range(1, len(survival) + 1) if gammas is None else sorted(gammas)
    if not chosen or not 1 <= chosen[0] <= chosen[-1] <= len(survival):
        raise ValueError(f"`gammas` must lie in [1, {len(survival)}], the length of `survival`, got {gammas!r}.")
    accepted = list(itertools.accumulate(survival))
    speedups = {gamma: expected_speedup(accepted[gamma - 1], gamma, times) for gamma in chosen}
    best = max(speedups, key=speedups.__getitem__)
    return best, speedups[best]
