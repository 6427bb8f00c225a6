"""Measurements of a pair of models across calls: round times and acceptance by position."""

import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import TypeVar

from torch import nn

from hf_diversed.theory import ForwardTimes


Kept = TypeVar("Kept")
_WINDOW = 512  # rounds: includes the rare ones of other lengths, and still follows the growth of the context
_MIN_ROUNDS = 4  # minimum number of rounds of one width for a quartile
_REFIT_EVERY = 32  # rounds
_MIN_SECONDS = 1e-9  # seconds; lower bound on measured times
_PROBE_SHARE = 0.02  # time of probes of drafting over that of rounds without draft tokens
_NEIGHBOURS = 8  # rounds before and after one, to estimate the speed of the machine at that time


class RoundTimes:
    """Times of the last rounds, and a linear fit: `seconds = target + num_drafted * draft`.

    Only whole rounds are timed, since timing parts of a round on an accelerator needs a synchronisation.
    """

    def __init__(self) -> None:
        self.num_rounds = 0
        self._rounds: deque[tuple[int, int, float]] = deque(maxlen=_WINDOW)
        self._costs: ForwardTimes | None = None
        self._refit_at = 0
        self._probe_debt = 0.0
        self._lock = RLock()

    def update(self, gamma: int, num_drafted: int, seconds: float) -> None:
        """Record a round with a scheduled `gamma` and `num_drafted` draft tokens in the block."""
        with self._lock:
            self._rounds.append((gamma, num_drafted, max(seconds, _MIN_SECONDS)))
            self.num_rounds += 1
            self._probe_debt = max(self._probe_debt - _PROBE_SHARE * seconds, 0.0) if gamma == 0 else seconds

    @property
    def costs(self) -> ForwardTimes | None:
        """Costs in units of a target forward; None until two widths have been timed often enough."""
        with self._lock:
            if self._rounds and (self._costs is None or self.num_rounds >= self._refit_at):
                _, widths, taken = zip(*self._rounds)
                self._costs, self._refit_at = fit(widths, taken, self._costs), self.num_rounds + _REFIT_EVERY
            return self._costs

    @property
    def may_probe(self) -> bool:
        """Whether the rounds without drafting since the last probe took 50 times as long as that probe."""
        return self._probe_debt == 0.0

    def rounds_by_gamma(self) -> Counter[int]:
        """Return the number of recent rounds per scheduled gamma."""
        with self._lock:
            return Counter(gamma for gamma, _, _ in self._rounds)


def fit(widths: Sequence[int], seconds: Sequence[float], known: ForwardTimes | None = None) -> ForwardTimes | None:
    """Fit a line to the times of successive rounds, in units of a target forward.

    Weighted least squares over the lower quartile of each width, with the number of rounds as weight. The quartile is
    used because disturbances (compilation, other processes, a growing buffer) only add time. With `known` costs, times
    are first divided by their local ratio to those costs, to correct for throttling and growing contexts.

    Returns:
        the fitted costs; `known` if fewer than two widths have enough rounds.
    """
    if known is not None:
        paces = [taken / known.round(width) for width, taken in zip(widths, seconds)]
        levels = [quartile(paces[max(0, at - _NEIGHBOURS) : at + _NEIGHBOURS + 1]) for at in range(len(paces))]
        seconds = [taken / level for taken, level in zip(seconds, levels)]
    by_width: dict[int, list[float]] = {}
    for width, taken in zip(widths, seconds):
        by_width.setdefault(width, []).append(taken)
    points = [(width, quartile(taken), len(taken)) for width, taken in by_width.items() if len(taken) >= _MIN_ROUNDS]
    if len(points) < 2:
        return known
    total = sum(weight for *_, weight in points)
    center = sum(width * weight for width, _, weight in points) / total
    level = sum(taken * weight for _, taken, weight in points) / total
    spread = sum(weight * (width - center) ** 2 for width, _, weight in points)
    slope = sum(weight * (width - center) * (taken - level) for width, taken, weight in points) / spread
    # Noise can give a negative slope or intercept; costs are not negative.
    draft = min(max(slope, 0.0), 0.99 * level / center)
    return ForwardTimes(target=1.0, draft=draft / (level - draft * center))


def quartile(values: Sequence[float]) -> float:
    """Return the lower quartile."""
    return sorted(values)[(len(values) - 1) // 4]


_HALF_LIFE = 64  # rounds; acceptance changes within a text
_FORGET = 0.5 ** (1.0 / _HALF_LIFE)
_PRIOR_RATE, _PRIOR_WEIGHT = 0.8, 4.0  # prior acceptance rate, and its weight in draft tokens
_POOLED_WEIGHT = 16.0  # weight of the rate over all positions, in draft tokens at one position


class Survival:
    """Probability that the first n draft tokens of a round are all accepted, with exponential forgetting.

    Each position has its own conditional acceptance rate, as positions are not independent. It is shrunk towards the
    rate over all positions where few draft tokens have been verified.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # calls in several threads share the statistics of a pair
        self._reached: list[float] = []
        self._kept: list[float] = []

    @property
    def is_new(self) -> bool:
        """Whether no round has been recorded, so that only the prior is used."""
        return not self._reached

    def update(self, kept: Sequence[int], possible: Sequence[int]) -> None:
        """Record a round: per row, the number of accepted draft tokens and the maximum possible number.

        Draft tokens after an EOS cost time and are never accepted, so an EOS counts as a rejection of the next token.
        """
        with self._lock:
            max_gamma = max(0, len(self._reached), *possible)
            self._reached, self._kept = (
                [count * _FORGET for count in counts] + [0.0] * (max_gamma - len(counts))
                for counts in (self._reached, self._kept)
            )
            for accepted, most in zip(kept, possible):
                for position in range(min(accepted + 1, most)):
                    self._reached[position] += 1.0
                for position in range(accepted):
                    self._kept[position] += 1.0

    def curve(self, max_gamma: int) -> list[float]:
        """Return the probability that the first n draft tokens are all accepted, n = 1..`max_gamma`."""
        with self._lock:
            all_reached, all_kept = list(self._reached), list(self._kept)
        rate = (sum(all_kept) + _PRIOR_WEIGHT * _PRIOR_RATE) / (sum(all_reached) + _PRIOR_WEIGHT)
        alive, curve = 1.0, []
        for position in range(max_gamma):
            seen = position < len(all_reached)
            reached, kept = (all_reached[position], all_kept[position]) if seen else (0.0, 0.0)
            alive *= (kept + _POOLED_WEIGHT * rate) / (reached + _POOLED_WEIGHT)
            curve.append(alive)
        return curve


_PRIOR = (0.64, 0.64)  # intercept and slope: lossless verification of Qwen2.5-Coder 1.5B with 0.5B
_PRIOR_PRECISION = (1.0, 4.0)  # chosen by replays on the embedded pair
_KEEP = 0.5 ** (1.0 / 512)  # per verified draft token
_PRIOR_ROUNDS, _PRIOR_WIDTH, _PRIOR_TOKENS = 4.0, 3.0, 3.0


class ConfidenceFit:
    """Acceptance of draft tokens as a function of max q, and tokens per round, with exponential forgetting.

    The probability of acceptance is sigmoid(intercept + slope * logit(max q)). Each verified draft token makes one
    Newton step of the logistic regression, with a Gaussian prior.

    Attributes:
        parameters: intercept and slope.
    """

    def __init__(self) -> None:
        # One attribute, so that threads that share the fit never combine values of different updates.
        self._state = _PRIOR, (_PRIOR_PRECISION[0], 0.0, _PRIOR_PRECISION[1])
        self._counts = _PRIOR_WEIGHT * _PRIOR_RATE, _PRIOR_WEIGHT  # accepted, verified
        self._sums = _PRIOR_ROUNDS, _PRIOR_ROUNDS * _PRIOR_WIDTH, _PRIOR_ROUNDS * _PRIOR_TOKENS

    @property
    def parameters(self) -> tuple[float, float]:
        return self._state[0]

    def acceptance(self, logit: float) -> float:
        """Return the acceptance probability of a draft token."""
        intercept, slope = self.parameters
        return 1.0 / (1.0 + math.exp(-(intercept + slope * logit)))

    @property
    def mean_acceptance(self) -> float:
        return self._counts[0] / self._counts[1]

    def rate(self, cost: float) -> float:
        """Return the tokens per row and target-forward time, if a draft token costs `cost` target forwards."""
        rounds, drafted, tokens = self._sums
        return tokens / (rounds + cost * drafted)

    def update(self, logit: float, accepted: bool) -> None:
        """Record a verified draft token."""
        (intercept, slope), precision = self._state
        expected = 1.0 / (1.0 + math.exp(-(intercept + slope * logit)))
        weight, error = expected * (1.0 - expected), accepted - expected
        fresh = [(1.0 - _KEEP) * each for each in _PRIOR_PRECISION]  # the prior replaces forgotten data
        a, b, d = (_KEEP * old for old in precision)
        a, b, d = a + fresh[0] + weight, b + weight * logit, d + fresh[1] + weight * logit**2
        first = error + fresh[0] * (_PRIOR[0] - intercept)
        second = error * logit + fresh[1] * (_PRIOR[1] - slope)
        determinant = a * d - b * b
        intercept, slope = (
            intercept + (d * first - b * second) / determinant,
            slope + (a * second - b * first) / determinant,
        )
        self._state = (intercept, slope), (a, b, d)
        self._counts = _KEEP * self._counts[0] + accepted, _KEEP * self._counts[1] + 1.0

    def add_round(self, tokens: float, drafted: int) -> None:
        """Record a round that emitted `tokens` per row after a block of `drafted` draft tokens."""
        rounds, before, emitted = (_FORGET * total for total in self._sums)
        self._sums = rounds + 1.0, before + drafted, emitted + tokens


_MAX_ENTRIES = 64  # entries per pair; the least recently used are dropped first
pairs: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakKeyDictionary[nn.Module, dict]]"
pairs = weakref.WeakKeyDictionary()
_lock = RLock()


def recall(target: nn.Module, draft: nn.Module, make: Callable[[], Kept], *key: Hashable) -> Kept:
    """Return the measurements of a pair for this key, created by `make` at first use, and freed with either model.

    Without a draft model, pass the target twice.
    """
    with _lock:
        kept = pairs.setdefault(target, weakref.WeakKeyDictionary()).setdefault(draft, {})
        found = kept[make, key] = kept.pop((make, key), None) or make()
        if len(kept) > _MAX_ENTRIES:
            del kept[next(iter(kept))]
    return found
