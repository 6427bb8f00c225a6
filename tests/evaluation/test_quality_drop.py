"""The test of a quality drop against its definition, by enumeration, and by simulation of calibrations."""

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


def num_passed(strictnesses, max_drop: float, confidence: float = 0.95) -> int:
    """The number of settings, from the first, that pass."""
    passed = [p_value(drops, max_drop) <= 1 - confidence for drops in strictnesses]
    return [*passed, False].index(False)


def test_calibrations_have_the_stated_confidence():
    """2,000 calibrations with one strictness whose drop is just above the limit, on rewards of two samples per prompt.
    A valid test passes it in at most 5% of them, so in more than 128 with a probability below 2e-3. Settings without
    a drop must also pass. Catches samples that count as independent prompts."""
    generator = np.random.default_rng(1)
    true_drops, max_drop, wrong, useful = np.array([0.0, 0.005, 0.0301, 0.05]), 0.03, 0, 0
    for _ in range(2000):
        skill = generator.beta(6, 2, size=(400, 1))
        reference = generator.random((400, 2)) < skill
        measured = []
        for drop in true_drops:
            relaxed = (generator.random((400, 2)) < skill) & (generator.random((400, 1)) >= drop / 0.75)
            measured.append(reference.mean(axis=1) - relaxed.mean(axis=1))
        passed = num_passed(measured, max_drop)
        wrong += passed > 2
        useful += passed > 0
    assert wrong <= 128
    assert useful > 400


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: p_value(np.array([0.0, 1.5]), 0.1), r"`drops` must be at least one value in \[-1, 1\]"),
        (lambda: p_value(np.array([]), 0.1), "`drops` must be at least one value"),
        (lambda: p_value(np.array([math.nan]), 0.1), "`drops` must be"),
        (lambda: p_value(np.array([0.0]), 0.0), "`max_quality_drop` must lie between 0 and 1, got 0.0"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ValueError, match=words):
        call()
