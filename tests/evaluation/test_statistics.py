"""The bootstrap against loops over replicates, and against distributions with known parameters."""

import math

import numpy as np
import pytest

from hf_diversed.evaluation.statistics import Bootstrap, paired_bounds, wilson


def draws(num_prompts: int, replicates: int, seed: int) -> list[np.ndarray]:
    """Prompts of every replicate, by definition: P of P with replacement."""
    generator = np.random.default_rng(seed)
    return list(generator.integers(num_prompts, size=(replicates, num_prompts)))


@pytest.fixture
def sums():
    """Per-prompt sums of five methods: accepted, drafted, score, samples, all `[5, P]`."""
    generator = np.random.default_rng(5)
    drafted = generator.integers(5, 40, size=(5, 23)).astype(float)
    return generator.binomial(drafted.astype(int), 0.7).astype(float), drafted, generator.random((5, 23)) * 3, 3.0


def test_statistics_are_those_of_a_loop(sums):
    """Catches counts of another replicate, means of ratios, and methods resampled independently."""
    accepted, drafted, score, samples = sums
    bootstrap = Bootstrap(23, 40, seed=7)
    rates = np.stack([bootstrap.ratio(a, d) for a, d in zip(accepted, drafted)], axis=1)
    quality = np.stack([bootstrap.ratio(s, np.full(23, samples)) for s in score], axis=1)
    for row, drawn in enumerate([np.arange(23), *draws(23, 40, seed=7)]):
        rate = accepted[:, drawn].sum(1) / drafted[:, drawn].sum(1)
        mean = score[:, drawn].sum(1) / (samples * 23)
        np.testing.assert_allclose(rates[row], rate, rtol=1e-12)
        np.testing.assert_allclose(quality[row], mean, rtol=1e-12)


def test_bounds_are_percentiles(sums):
    """Catches one-sided tails used for two-sided bounds, and the value counted as a replicate."""
    statistic = np.concatenate([[1000.0], np.random.default_rng(0).permutation(1001) / 1000])
    estimate = Bootstrap.estimate(statistic)
    assert estimate.value == 1000.0
    np.testing.assert_allclose([estimate.low, estimate.high], [0.025, 0.975], atol=1e-12)


def test_undefined_statistics():
    """Catches NaN in bounds: few undefined replicates are omitted, many give no bounds."""
    few = np.concatenate([[0.5], np.full(3, np.nan), np.linspace(0, 1, 97)])
    assert Bootstrap.estimate(few).low == pytest.approx(0.025)
    many = np.concatenate([[0.5], np.full(6, np.nan), np.linspace(0, 1, 94)])
    assert np.isnan(Bootstrap.estimate(many).low)
    unknown = Bootstrap.estimate(np.array([np.nan, 0.1, 0.2]))
    assert np.isnan([unknown.value, unknown.low, unknown.high]).all()
    empty = Bootstrap(4, 10)
    assert np.isnan(empty.ratio(np.zeros(4), np.zeros(4))).all()


def test_wilson_solves_its_equation():
    """Catches a one-sided quantile and a wrong centre: at its bounds, the observed rate is z standard errors away."""
    for successes, trials in ((0, 10), (3, 10), (10, 10), (861, 1000)):
        low, high = wilson(successes, trials)
        for bound in (low, high):
            if 1e-9 < bound < 1 - 1e-9:
                off = abs(successes / trials - bound) / np.sqrt(bound * (1 - bound) / trials)
                assert off == pytest.approx(1.959964, rel=1e-5)
        assert 0.0 <= low <= high <= 1.0
    assert wilson(10, 10)[0] == pytest.approx(0.7225, abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)


def test_outcomes_that_are_all_equal():
    """Catches "0 of 8 right", and two methods that agree on 8 prompts, with bounds of width 0, which the bootstrap
    gives and Wilson's interval does not; and bounds outside of the possible range."""
    bootstrap, unseen = Bootstrap(8, 50), wilson(0, 8)[1]
    for value in (0.0, 1.0):
        right, ones = np.full(8, 4 * value), np.full(8, 4.0)  # four samples a prompt: the trials are still 8 prompts
        found = bootstrap.estimate_mean(bootstrap.ratio(right, ones), 0.0, 1.0)
        assert found.value == value
        assert (found.low, found.high) == pytest.approx(wilson(8 * value, 8), abs=1e-12)
    same = bootstrap.estimate_mean(np.zeros(51), -1.0, 1.0)
    assert (same.low, same.high) == pytest.approx((-unseen, unseen))
    worst = bootstrap.estimate_mean(np.ones(51), -1.0, 1.0)
    assert (worst.low, worst.high) == pytest.approx((1 - 2 * unseen, 1.0))


@pytest.mark.parametrize(("better", "worse"), [(0.03, 0.01), (0.1, 0.02), (0.3, 0.1)])
def test_coverage_of_paired_bounds(better, worse):
    """Catches bounds that are too narrow if few prompts differ, by summing the probabilities of all outcomes."""
    pairs, covered = 60, 0.0
    for first in range(pairs + 1):
        for second in range(pairs + 1 - first):
            low, high = paired_bounds(first, second, pairs)
            if low <= better - worse <= high:
                ways = math.comb(pairs, first) * math.comb(pairs - first, second)
                covered += ways * better**first * worse**second * (1 - better - worse) ** (pairs - first - second)
    assert 0.94 < covered < 0.999


def test_differences_with_one_score_of_0_or_1_per_prompt():
    """Catches the two sides mixed up, and closed bounds for several samples per prompt or other scores."""
    target, other = np.array([1.0, 1, 1, 1, 0, 0, 1, 0]), np.array([0.0, 0, 0, 1, 0, 0, 1, 1])
    one, bootstrap = np.ones(8), Bootstrap(8)
    found = bootstrap.estimate_difference((target, one), (other, one))
    assert (found.value, found.low, found.high) == (pytest.approx(2 / 8), *paired_bounds(3, 1, 8))
    for first, second in [((2 * target, 2 * one), (2 * other, 2 * one)), ((target / 2, one), (other / 2, one))]:
        statistic = bootstrap.ratio(*first) - bootstrap.ratio(*second)
        assert bootstrap.estimate_difference(first, second) == bootstrap.estimate(statistic)
