"""The theory on random distributions, in float64, and speedups by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.sampling import total_variation
from hf_diversed.theory import (
    ForwardTimes,
    best_gamma,
    expected_acceptance,
    expected_speedup,
    reject_and_bias,
)
from tests.verifier_cases import Probs, lenient_probs


TOLERANCE = 1e-12
seeds = st.integers(0, 2**32 - 1)


def random_distributions(seed: int, *shape: int) -> list[torch.Tensor]:
    """Two sharp random distributions of the given shape, the last axis the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.softmax(3.0 * torch.randn(*shape, generator=generator).double(), dim=-1) for _ in range(2)]


@given(seed=seeds, weight=st.floats(0.0, 1.0))
@settings(max_examples=50, deadline=None)
def test_acceptance_is_one_minus_w_tv(seed: int, weight: float):
    """Catches a weight applied to the draft, and TV without its factor 1/2."""
    p, q = random_distributions(seed, 4, 5)
    v = weight * p + (1.0 - weight) * q
    torch.testing.assert_close(expected_acceptance(p, q, weight), torch.minimum(q, v).sum(-1), rtol=0, atol=TOLERANCE)


def excess(v, p, q):
    """Return TV(q, v) + TV(v, p) - TV(q, p): 0 on the front of rejection and bias."""
    reject, bias = reject_and_bias(v, p, q)
    return reject + bias - total_variation(q, p)


@given(seed=seeds, weight=st.floats(0.0, 1.0), lenience=st.floats(0.01, 1.0))
@settings(max_examples=100, deadline=None)
def test_mixtures_and_lenience_lie_on_the_front(seed: int, weight: float, lenience: float):
    """Catches swapped bias and rejection, which their sum does not detect, and an excess to another distribution."""
    p, q = random_distributions(seed, 4, 6)
    mixed = weight * p + (1.0 - weight) * q
    distance = total_variation(p, q)
    for found, share in zip(reject_and_bias(mixed, p, q), (weight, 1.0 - weight)):
        torch.testing.assert_close(found, share * distance, rtol=0, atol=TOLERANCE)
    for distribution in (mixed, lenient_probs(Probs(p, q, p, q), lenience), p, q):
        assert excess(distribution, p, q).abs().max() <= TOLERANCE


def test_speedup_by_hand():
    """Catches a missing bonus token, draft cost counted once instead of gamma times, and missing overhead."""
    assert expected_speedup(3.0, 5, ForwardTimes(1.0, 0.1)) == pytest.approx(4.0 / 1.5)
    times = ForwardTimes(target=0.020, draft=0.002, extra_position=0.001, overhead=0.005)
    assert times.round(5) == pytest.approx(0.040)
    assert expected_speedup(3.0, 5, times) == pytest.approx(4.0 * 0.020 / 0.040)
    assert expected_speedup(0.0, 0, ForwardTimes(1.0, 0.1)) == 1.0


def test_best_gamma():
    """Catches the last length returned as the best, and an off-by-one error in the index."""
    survival = [0.8**n for n in range(1, 31)]
    for ratio in (0.0, 0.02, 0.1, 0.5, 2.0):
        times = ForwardTimes(1.0, ratio)
        speeds = [expected_speedup(sum(survival[:gamma]), gamma, times) for gamma in range(1, 31)]
        gamma, speedup = best_gamma(survival, times)
        assert speedup == pytest.approx(max(speeds))
        assert gamma == 1 + speeds.index(max(speeds))
    assert best_gamma(survival, ForwardTimes(1.0, 0.0))[0] == 30
    assert best_gamma(survival, ForwardTimes(1.0, 2.0)) == (1, pytest.approx(1.8 / 3.0))
    assert best_gamma([0.9, 0.9, 0.0], ForwardTimes(1.0, 0.1))[0] == 2
    assert best_gamma([0.9, 0.9, 0.0], ForwardTimes(1.0, 0.1), [3, 1]) == (3, pytest.approx(2.8 / 1.3))


def test_arguments_are_checked():
    times = ForwardTimes(1.0, 0.1)
    for gammas in ([], [0, 1], [2, 4]):
        with pytest.raises(ValueError, match=r"`gammas` must lie in \[1, 3\]"):
            best_gamma([0.9, 0.9, 0.0], times, gammas)
    for survival in ([], [0.5, 0.6], [1.1], [float("nan")]):
        with pytest.raises(ValueError, match="`survival`"):
            best_gamma(survival, times)
    for changes in ({"target": 0.0}, {"draft": -1.0}, {"overhead": math.nan}):
        with pytest.raises(ValueError, match=f"`{next(iter(changes))}`"):
            ForwardTimes(**{"target": 1.0, "draft": 0.1, **changes})
