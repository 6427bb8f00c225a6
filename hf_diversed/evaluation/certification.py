"""Which settings cost no more quality than was stated, with a bound on the chance to be wrong. Pure numpy.

Quality is a reward in [0, 1]; a drop is the target's own mean reward minus that of relaxed decoding, in its units.
Prompts are the independent units: several samples of one are averaged first.

Letters: P prompts, S samples of each.
"""

import math
from collections.abc import Collection

import numpy as np


_LARGEST_BET = 0.75  # never all: a single prompt would end the test
_TOLERATES = "0.01 tolerates one point."
_BETS_SUIT = math.log(1 / 0.05)  # tests at level 0.05; bets that do not follow the level keep decisions monotone in it


def paired_drops(reference: np.ndarray, relaxed: np.ndarray) -> np.ndarray:
    """Drop of every prompt: `[P]` in [-1, 1], from rewards `[P, S]` of the target alone and of relaxed decoding.

    Raises:
        ValueError: on rewards outside of [0, 1], or of different prompts.
    """
    rewards = [np.asarray(values, dtype=np.float64) for values in (reference, relaxed)]
    if any(values.ndim != 2 for values in rewards) or len(rewards[0]) != len(rewards[1]) or not rewards[0].size:
        raise ValueError(f"rewards must be [prompts, samples] of the same prompts, got {[x.shape for x in rewards]}.")
    if not all(((values >= 0.0) & (values <= 1.0)).all() for values in rewards):
        found = [float(bound) for values in rewards for bound in (values.min(), values.max())]
        raise ValueError(f"rewards must lie in [0, 1], got {min(found)} to {max(found)}; rescale them.")
    return rewards[0].mean(axis=1) - rewards[1].mean(axis=1)


def p_value(drops: np.ndarray, max_drop: float) -> float:
    """P-value of "the mean drop is above `max_drop`": valid for any number of prompts and any law of the drops.

    The capital of a gambler who bets, prompt after prompt, that the drop lies below `max_drop`, and knows only earlier
    prompts when betting: if the hypothesis holds it is a supermartingale, and by Ville's inequality exceeds 1/p with
    probability at most p (Waudby-Smith and Ramdas, arXiv 2010.09686, with their predictable plug-in bets for a number
    of prompts that is known beforehand). It uses the variance that the drops do have, and so is far tighter than
    bounds for the worst one, such as Hoeffding-Bentkus (Bates et al., arXiv 2101.02703). Never larger for a larger
    `max_drop`.

    Args:
        drops: `[P]` in [-1, 1], of prompts drawn independently from one law, in an order that does not depend on them.
        max_drop: in (0, 1).

    Raises:
        ValueError: on values out of range.
    """
    drops = np.asarray(drops, dtype=np.float64)
    if drops.ndim != 1 or not len(drops) or not (np.abs(drops) <= 1.0).all():
        raise ValueError("`drops` must be at least one value in [-1, 1], one per prompt; average samples first.")
    check_share("max_drop", max_drop, _TOLERATES)
    counts = np.arange(1, len(drops) + 1)
    mean = np.cumsum(drops) / (counts + 1)
    variance = (1.0 + np.cumsum((drops - mean) ** 2)) / (counts + 1)
    variance = np.concatenate([[1.0], variance[:-1]])  # what was known before each prompt
    bets = np.minimum(_LARGEST_BET, np.sqrt(2.0 * _BETS_SUIT / (len(drops) * variance)))
    log_capital = np.cumsum(np.log1p(bets * (max_drop - drops)))
    return float(math.exp(-max(0.0, log_capital.max())))


class FixedSequence:
    """Tests settings in an order chosen beforehand, strict to permissive, each for all stated drops.

    A drop is tested at level `1 - confidence` until the first setting that fails it, so no correction is needed: with
    probability `confidence` no setting that passed has a larger drop than was stated (Learn then Test, Angelopoulos et
    al., arXiv 2110.01052). That holds for each stated drop by itself.

    Attributes:
        passed: for every stated drop, how many settings are certified: the first ones.
        open: stated drops that no setting has failed yet; without any there is nothing left to test.

    Raises:
        ValueError: on drops or a confidence that do not lie between 0 and 1.
    """

    def __init__(self, max_drops: Collection[float], confidence: float):
        check_share("confidence", confidence, "0.95 is wrong in one of 20 calibrations.")
        for max_drop in max_drops:
            check_share("max_drop", max_drop, _TOLERATES)
        self.level = 1.0 - confidence
        self.open = sorted(set(max_drops))
        self.passed = dict.fromkeys(self.open, 0)

    def test(self, drops: np.ndarray) -> dict[float, float]:
        """Test the next setting by its drops `[P]`: p-values by stated drop, of those still open."""
        found = {max_drop: p_value(drops, max_drop) for max_drop in self.open}
        self.open = [max_drop for max_drop, value in found.items() if value <= self.level]
        for max_drop in self.open:
            self.passed[max_drop] += 1
        return found


def check_share(name: str, value: float, advice: str) -> None:
    """Refuse what does not lie strictly between 0 and 1. Raises ValueError."""
    if isinstance(value, str) or not 0.0 < value < 1.0:  # also refuses nan
        raise ValueError(f"`{name}` must lie between 0 and 1, got {value!r}; {advice}")
