"""Tests of whether the quality drop of a setting is within a limit, with a bounded error probability. Pure numpy.

Quality is a reward in [0, 1]; a drop is the target's mean reward minus that of relaxed decoding.
Prompts are the independent units: the samples of each are averaged first.

Letters: P prompts, S samples of each.
"""

import math
from collections.abc import Collection

import numpy as np


_LARGEST_BET = 0.75  # below 1, so that a single prompt cannot end the test
_TOLERATES = "0.01 tolerates one point."
_BETS_SUIT = math.log(1 / 0.05)  # chosen for level 0.05; bets independent of the level keep decisions monotone in it


def paired_drops(reference: np.ndarray, relaxed: np.ndarray) -> np.ndarray:
    """Return the drop of every prompt, `[P]` in [-1, 1], from rewards `[P, S]` of the target and of relaxed decoding.

    Raises:
        ValueError: if rewards lie outside [0, 1] or belong to different prompts.
    """
    rewards = [np.asarray(values, dtype=np.float64) for values in (reference, relaxed)]
    if any(values.ndim != 2 for values in rewards) or len(rewards[0]) != len(rewards[1]) or not rewards[0].size:
        raise ValueError(f"rewards must be [prompts, samples] of the same prompts, got {[x.shape for x in rewards]}.")
    if not all(((values >= 0.0) & (values <= 1.0)).all() for values in rewards):
        found = [float(bound) for values in rewards for bound in (values.min(), values.max())]
        raise ValueError(f"rewards must lie in [0, 1], got {min(found)} to {max(found)}; rescale them.")
    return rewards[0].mean(axis=1) - rewards[1].mean(axis=1)


def p_value(drops: np.ndarray, max_drop: float) -> float:
    """Return the p-value of "the mean drop is above `max_drop`", valid for any number of prompts and distribution.

    A test by betting: the capital grows with each prompt whose drop lies below `max_drop`, and each bet depends on
    earlier prompts only. Under the hypothesis the capital is a supermartingale, so by Ville's inequality it exceeds
    1/p with probability at most p (Waudby-Smith and Ramdas, arXiv 2010.09686, with their predictable plug-in bets for
    a fixed number of prompts). The bets adapt to the variance of the drops, which makes the test far tighter than
    worst-case bounds such as Hoeffding-Bentkus (Bates et al., arXiv 2101.02703). The p-value does not increase with
    `max_drop`.

    Args:
        drops: `[P]` in [-1, 1], of prompts drawn independently from one distribution, in an order independent of them.
        max_drop: in (0, 1).

    Raises:
        ValueError: for values out of range.
    """
    drops = np.asarray(drops, dtype=np.float64)
    if drops.ndim != 1 or not len(drops) or not (np.abs(drops) <= 1.0).all():
        raise ValueError("`drops` must be at least one value in [-1, 1], one per prompt; average samples first.")
    check_share("max_drop", max_drop, _TOLERATES)
    counts = np.arange(1, len(drops) + 1)
    mean = np.cumsum(drops) / (counts + 1)
    variance = (1.0 + np.cumsum((drops - mean) ** 2)) / (counts + 1)
    variance = np.concatenate([[1.0], variance[:-1]])  # the estimate before each prompt
    bets = np.minimum(_LARGEST_BET, np.sqrt(2.0 * _BETS_SUIT / (len(drops) * variance)))
    log_capital = np.cumsum(np.log1p(bets * (max_drop - drops)))
    return float(math.exp(-max(0.0, log_capital.max())))


class FixedSequence:
    """Tests settings in a fixed order, strict to permissive, each for all tolerated drops.

    A drop is tested at level `1 - confidence` until the first setting that fails it, so no correction is needed: with
    probability `confidence` no setting that passed has a larger drop than tolerated (Learn then Test, Angelopoulos et
    al., arXiv 2110.01052). The guarantee holds for each drop separately.

    Attributes:
        passed: for every drop, the number of settings, from the first, that are certified.
        open: drops that no setting has failed yet; the test ends when it is empty.

    Raises:
        ValueError: if a drop or the confidence does not lie between 0 and 1.
    """

    def __init__(self, max_drops: Collection[float], confidence: float):
        check_share("confidence", confidence, "0.95 is wrong in one of 20 calibrations.")
        for max_drop in max_drops:
            check_share("max_drop", max_drop, _TOLERATES)
        self.level = 1.0 - confidence
        self.open = sorted(set(max_drops))
        self.passed = dict.fromkeys(self.open, 0)

    def test(self, drops: np.ndarray) -> dict[float, float]:
        """Test the next setting by its drops `[P]`; return the p-value of each open drop."""
        found = {max_drop: p_value(drops, max_drop) for max_drop in self.open}
        self.open = [max_drop for max_drop, value in found.items() if value <= self.level]
        for max_drop in self.open:
            self.passed[max_drop] += 1
        return found


def check_share(name: str, value: float, advice: str) -> None:
    """Raise ValueError unless `value` lies strictly between 0 and 1."""
    if isinstance(value, str) or not 0.0 < value < 1.0:  # also refuses NaN
        raise ValueError(f"`{name}` must lie between 0 and 1, got {value!r}; {advice}")
