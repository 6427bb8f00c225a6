"""What rounds have shown of a pair: how long they take, and how many of their drafts are kept. Chooses nothing."""

import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from threading import RLock
from typing import Any, TypeVar

from torch import nn

from hf_diversed.theory import ForwardTimes


Kept = TypeVar("Kept")
_WINDOW = 512  # rounds: long enough to hold the odd ones that try another length, short enough to follow the context
_ENOUGH = 4  # rounds of one width whose quartile means something
_REFIT_EVERY = 32  # rounds
_TICK = 1e-9  # seconds; no round takes less, whatever the clock says
_AROUND = 8  # rounds before and after one that say how fast the machine was then


class RoundTimes:
    """How long the last rounds took, and what a draft costs in them: `seconds = target + drafts * draft`.

    A round is timed as a whole, since on an accelerator nothing less can be without making the host wait.
    """

    def __init__(self) -> None:
        self.num_rounds = 0
        self._rounds: deque[tuple[int, int, float]] = deque(maxlen=_WINDOW)
        self._costs: ForwardTimes | None = None
        self._lock = RLock()

    def learn(self, asked: int, drafts: int, seconds: float) -> None:
        """File a round that was to draft `asked` tokens per row, and did draft `drafts`."""
        with self._lock:
            self._rounds.append((asked, drafts, max(seconds, _TICK)))
            self.num_rounds += 1
            if self._costs is None or self.num_rounds % _REFIT_EVERY == 0:
                _, widths, taken = zip(*self._rounds)
                self._costs = fit(widths, taken, self._costs)

    @property
    def costs(self) -> ForwardTimes | None:
        """In forwards of the target; None as long as fewer than two widths have been timed often enough."""
        return self._costs

    def asked(self) -> Counter[int]:
        """How many of the last rounds were to draft how many tokens."""
        with self._lock:
            return Counter(asked for asked, _, _ in self._rounds)


def fit(widths: Sequence[int], seconds: Sequence[float], known: ForwardTimes | None = None) -> ForwardTimes | None:
    """The line through the durations of successive rounds, in forwards of the target; None for a single width.

    Least squares through each width's lower quartile, as heavy as it has rounds: what disturbs a round (compilation,
    other processes, a growing buffer) only ever adds to its time. The machine slows down and texts grow; as soon as
    something is `known` of the costs, they tell which rounds that was so for, whatever their widths.
    """
    if known is not None:
        paces = [taken / known.round(width) for width, taken in zip(widths, seconds)]
        levels = [quartile(paces[max(0, at - _AROUND) : at + _AROUND + 1]) for at in range(len(paces))]
        seconds = [taken / level for taken, level in zip(seconds, levels)]
    by_width: dict[int, list[float]] = {}
    for width, taken in zip(widths, seconds):
        by_width.setdefault(width, []).append(taken)
    points = [(width, quartile(taken), len(taken)) for width, taken in by_width.items() if len(taken) >= _ENOUGH]
    if len(points) < 2:
        return known
    total = sum(weight for *_, weight in points)
    center = sum(width * weight for width, _, weight in points) / total
    level = sum(taken * weight for _, taken, weight in points) / total
    spread = sum(weight * (width - center) ** 2 for width, _, weight in points)
    slope = sum(weight * (width - center) * (taken - level) for width, taken, weight in points) / spread
    # A disturbed line may fall, or run through 0; costs do neither.
    draft = min(max(slope, 0.0), 0.99 * level / center)
    return ForwardTimes(target=1.0, draft=draft / (level - draft * center))


def quartile(values: Sequence[float]) -> float:
    """The lower one."""
    return sorted(values)[(len(values) - 1) // 4]


_HALF_LIFE = 64  # rounds; texts have easy and hard passages
_FORGET = 0.5 ** (1.0 / _HALF_LIFE)
_PRIOR_RATE, _PRIOR_DRAFTS = 0.8, 4.0  # what is believed of a draft at first, and how many drafts outweigh it
_POOLED_DRAFTS = 16.0  # as many drafts at one position outweigh what all positions say together


class Survival:
    """How often the first n drafts of a round are all kept: recent rounds of all rows, with exponential forgetting.

    Every position has its own probability of being kept once those before it are, drawn towards that of all positions
    where it has been reached rarely: steps of a text are not independent, and far positions are seldom seen.
    """

    def __init__(self) -> None:
        self._reached: list[float] = []
        self._kept: list[float] = []

    @property
    def is_new(self) -> bool:
        """Whether nothing but what was believed at first speaks from it."""
        return not self._reached

    def learn(self, kept: Sequence[int], paid: Sequence[int]) -> None:
        """File a round: per row how many drafts were kept, of how many that could have been.

        Drafts behind a drafted EOS were paid for and bring nothing, so there the text ends a row of kept drafts just
        as a rejection does.
        """
        longest = max(0, len(self._reached), *paid)
        self._reached, self._kept = (
            [count * _FORGET for count in counts] + [0.0] * (longest - len(counts))
            for counts in (self._reached, self._kept)
        )
        for accepted, most in zip(kept, paid):
            for position in range(min(accepted + 1, most)):
                self._reached[position] += 1.0
            for position in range(accepted):
                self._kept[position] += 1.0

    def curve(self, longest: int) -> list[float]:
        """Probability that the first n drafts are all kept, n = 1..`longest`."""
        rate = (sum(self._kept) + _PRIOR_DRAFTS * _PRIOR_RATE) / (sum(self._reached) + _PRIOR_DRAFTS)
        alive, curve = 1.0, []
        for position in range(longest):
            seen = position < len(self._reached)
            reached, kept = (self._reached[position], self._kept[position]) if seen else (0.0, 0.0)
            alive *= (kept + _POOLED_DRAFTS * rate) / (reached + _POOLED_DRAFTS)
            curve.append(alive)
        return curve


_MOST_KEPT = 64  # things remembered of a pair; those used longest ago go first
_lock = RLock()


class Experience:
    """What is remembered of one pair, by key, from call to call."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()

    def recall(self, make: Callable[[], Kept], *key: Hashable) -> Kept:
        """What `make` made when it was first asked for under this key."""
        with _lock:
            found = self._kept.pop((make, key), None) or make()
            self._kept[make, key] = found
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return found


_pairs: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakKeyDictionary[nn.Module, Experience]]"
_pairs = weakref.WeakKeyDictionary()


def experience_with(target: nn.Module, draft: nn.Module) -> Experience:
    """The experience with a pair; it goes when either model does. A target that drafts by itself is its own draft."""
    with _lock:
        return _pairs.setdefault(target, weakref.WeakKeyDictionary()).setdefault(draft, Experience())
