"""What verification must cost and yield: acceptance, accepted length, the reject/bias front, the best draft length.

Statements about laws and probabilities only; nothing here decodes. Laws are float `[..., V]` that sum to one.
Sources: arXiv 2604.07622 (mixtures), arXiv 2211.17192 (i.i.d. acceptance, section 3).
Letters: G drafted positions, V vocabulary.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from hf_diversed.sampling import total_variation


def expected_acceptance(p: torch.Tensor, q: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Probability that verification against `v = weight * p + (1 - weight) * q` keeps a draft: `1 - weight TV(p, q)`.

    Args:
        p, q: float `[..., V]`, the target's and the draft's law. weight: float, or tensor `[...]`, on the target.
    """
    return 1.0 - weight * total_variation(p, q)


def expected_accepted(accept_prob: torch.Tensor, num_drafted: torch.Tensor | None = None) -> torch.Tensor:
    """Expected number of accepted drafts of a round, given its drafts: `sum_n prod_{t <= n} a_t`.

    Exact whatever the steps have to do with each other. The mean over rounds drawn from q, rejected ones with all
    their drafts included, estimates the expected accepted length without bias.

    Args:
        accept_prob: float `[..., G]`, probability of keeping each draft if all before it are kept, `min(1, v / q)`.
        num_drafted: long `[...]`, drafts that count; None for all G.

    Returns:
        float64 `[...]`, between 0 and `num_drafted`.
    """
    survival = accept_prob.double().cumprod(dim=-1)
    if num_drafted is not None:
        cut = torch.arange(survival.shape[-1], device=survival.device) >= num_drafted[..., None]
        survival = survival.masked_fill(cut, 0.0)
    return survival.sum(dim=-1)


def iid_accepted_length(rate: float, gamma: float) -> float:
    """Expected number of accepted drafts if every draft were kept with the same probability, independently.

    `sum_{n <= gamma} rate^n = rate (1 - rate^gamma) / (1 - rate)`; steps of a text are not independent, so this is an
    approximation.

    Args:
        rate: in [0, 1], acceptance per verified draft. gamma: drafts per round; a mean need not be whole.
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"`rate` must lie in [0, 1], got {rate!r}; it is accepted / verified drafts.")
    if not gamma >= 0.0:
        raise ValueError(f"`gamma` must be >= 0, got {gamma!r}.")
    if rate in (0.0, 1.0):
        return rate * gamma
    return rate * math.expm1(gamma * math.log(rate)) / (rate - 1.0)  # 1 - rate^gamma loses its digits near rate 1


def reject_and_bias(v: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least rejection probability TV(q, v) with which a verifier can emit `v`, and its bias TV(v, p): `[...]` each."""
    return total_variation(q, v), total_variation(v, p)


def pareto_front(p: torch.Tensor, q: torch.Tensor, weight: torch.Tensor | float) -> tuple[torch.Tensor, torch.Tensor]:
    """The best pairs of rejection probability and bias: `weight TV(p, q)` and `(1 - weight) TV(p, q)`.

    No law rejects less at the same bias; `weight` from 0 to 1 runs along the whole front.
    """
    distance = total_variation(p, q)
    return weight * distance, (1.0 - weight) * distance


def pareto_excess(v: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """How far `v` lies behind the front: `TV(q, v) + TV(v, p) - TV(q, p)`, `[...]`.

    Never negative, by the triangle inequality; 0 iff every v(x) lies between p(x) and q(x), as that of mixtures does.
    """
    reject, bias = reject_and_bias(v, p, q)
    return reject + bias - total_variation(q, p)


@dataclass(frozen=True)
class ForwardTimes:
    """What a round costs; in seconds, or in forwards of the target for a cost ratio c: `ForwardTimes(1.0, c)`.

    Args:
        target: a target forward on one token, which is also what plain decoding pays for a token.
        draft: a draft forward on one token.
        extra_position: what each drafted token adds to the target's forward; about 0 while it is bound by memory.
        overhead: everything else in a round.

    Raises:
        ValueError: unless `target` is positive and the others are not negative.
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
        """Time of a round with `gamma` drafts."""
        return gamma * (self.draft + self.extra_position) + self.target + self.overhead


def expected_speedup(accepted_length: float, gamma: int, times: ForwardTimes) -> float:
    """Tokens per time, relative to plain decoding: `(accepted_length + 1) * target / time of a round`.

    Args:
        accepted_length: accepted drafts per round, measured or expected; the residual or bonus token comes on top.
    """
    return (accepted_length + 1.0) * times.target / times.round(gamma)


def best_gamma(
    survival: Sequence[float], times: ForwardTimes, lengths: Collection[int] | None = None
) -> tuple[int, float]:
    """The draft length with the highest expected speedup, and that speedup; below 1, plain decoding is faster.

    Args:
        survival: probability that the first n drafts are all kept, n = 1..G: what an evaluation records as
            `accepted_per_position`, or `[rate**n ...]` for i.i.d. steps.
        lengths: those to compare, between 1 and G; None for all of them.
    """
    if not survival or not all(0.0 <= below <= above <= 1.0 for above, below in zip([1.0, *survival], survival)):
        raise ValueError(
            f"`survival` must hold at least one probability and never rise, got {list(survival)!r}; it says how often "
            "the first n drafts are all kept."
        )
    chosen = range(1, len(survival) + 1) if lengths is None else sorted(lengths)
    if not chosen or not 1 <= chosen[0] <= chosen[-1] <= len(survival):
        raise ValueError(f"`lengths` must lie in [1, {len(survival)}], got {lengths!r}; `survival` knows no others.")
    accepted = list(itertools.accumulate(survival))
    speedups = {gamma: expected_speedup(accepted[gamma - 1], gamma, times) for gamma in chosen}
    best = max(speedups, key=speedups.__getitem__)
    return best, speedups[best]
