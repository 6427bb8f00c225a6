"""The test of a quality drop against its definition and by enumeration."""

import itertools
import math

import numpy as np
import pytest

from hf_diversed.evaluation.calibrate import p_value


def capital(drops, max_drop: float) -> float:
    """The largest capital by definition, one bet after the other."""
    wealth = best = 1.0
    total, squares, variance = 0.0, 0.0, 1.0
    for count, drop in enumerate(drops, start=1):
        bet = min(0.75, math.sqrt(2 * math.log(20) / (len(drops) * variance)))
        wealth *= 1 + bet * (max_drop - drop)
        best = max(best, wealth)
        total += drop
        squares += (drop - total / (count + 1)) ** 2
        variance = (1 + squares) / (count + 1)
    return best


@pytest.mark.parametrize("max_drop", [0.01, 0.1, 0.5])
def test_is_that_of_a_loop(max_drop):
    """Catches a bet that depends on its own prompt, which would invalidate the bound."""
    generator = np.random.default_rng(3)
    for size in (2, 17, 400):
        drops = generator.choice([-1.0, -0.5, 0.0, 0.5, 1.0], p=[0.05, 0.1, 0.8, 0.03, 0.02], size=size)
        assert p_value(drops, max_drop) == pytest.approx(1 / capital(drops, max_drop), rel=1e-9)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 1.0), (-0.1, 0.9), (0.0, 0.5)])
@pytest.mark.parametrize("max_drop", [0.02, 0.3])
def test_valid_by_enumeration(low, high, max_drop):
    """Catches p-values below their level: all sequences of nine prompts whose mean drop is exactly the stated one."""
    prob = (max_drop - low) / (high - low)
    found = []
    for bits in itertools.product((0, 1), repeat=9):
        drops = np.where(bits, high, low)
        found.append((p_value(drops, max_drop), prob ** sum(bits) * (1 - prob) ** (9 - sum(bits))))
    for level, _ in found:
        assert sum(mass for value, mass in found if value <= level) <= level + 1e-12
