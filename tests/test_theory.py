"""The theory against enumeration of small vocabularies: every draft token and every decision, in float64."""

import itertools
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
    expected_accepted,
    expected_speedup,
    iid_accepted_length,
    reject_and_bias,
)
from tests.verifier_cases import Probs, lenient_probs


VOCAB = 3
TOLERANCE = 1e-12
seeds = st.integers(0, 2**32 - 1)


def random_distributions(seed: int, *shape: int) -> list[torch.Tensor]:
    """Two sharp random distributions of the given shape, the last axis the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.softmax(3.0 * torch.randn(*shape, generator=generator).double(), dim=-1) for _ in range(2)]


def context_tables(seed: int, length: int) -> dict[tuple[int, ...], list[torch.Tensor]]:
    """Return (q, v) for every prefix of draft tokens: distributions that depend on the context."""
    prefixes = [prefix for n in range(length) for prefix in itertools.product(range(VOCAB), repeat=n)]
    return {prefix: random_distributions(seed + index, VOCAB) for index, prefix in enumerate(prefixes)}


def enumerated_length(tables: dict, length: int) -> float:
    """Return the mean number of accepted draft tokens by enumerating draft tokens and acceptance decisions."""
    total = 0.0
    for drafts in itertools.product(range(VOCAB), repeat=length):
        steps = [(tables[drafts[:n]], drafts[n]) for n in range(length)]
        drawn = math.prod(float(q[x]) for (q, _), x in steps)
        accept_probs = [min(1.0, float(v[x] / q[x])) for (q, v), x in steps]
        for flips in itertools.product((True, False), repeat=length):
            outcome_prob = math.prod(prob if kept else 1.0 - prob for prob, kept in zip(accept_probs, flips))
            total += drawn * outcome_prob * len(list(itertools.takewhile(bool, flips)))
    return total


@pytest.mark.parametrize("length", [1, 2, 3])
@given(seed=seeds)
@settings(max_examples=15, deadline=None)
def test_expected_length_is_that_of_all_drafts_and_decisions(length: int, seed: int):
    """Catches a product that starts late or omits earlier steps, and means taken before products.

    Also catches the assumption that steps are independent: these distributions depend on the context.
    """
    tables = context_tables(seed, length)
    expected = enumerated_length(tables, length)
    drafts = list(itertools.product(range(VOCAB), repeat=length))
    probs = [[(*tables[path[:n]], path[n]) for n in range(length)] for path in drafts]
    accept = torch.stack([torch.stack([(v[x] / q[x]).clamp_max(1.0) for q, v, x in path]) for path in probs])
    drawn = torch.stack([torch.stack([q[x] for q, _, x in path]).prod() for path in probs])
    assert float(drawn @ expected_accepted(accept)) == pytest.approx(expected, abs=TOLERANCE)
    # Equal to the sums of min(q, v) over prefixes.
    overlap = torch.stack([torch.stack([torch.minimum(q, v)[x] for q, v, x in path]) for path in probs])
    by_prefix = sum(
        float({path[:n]: product[n - 1] for path, product in zip(drafts, overlap.cumprod(-1))}[prefix])
        for n in range(1, length + 1)
        for prefix in itertools.product(range(VOCAB), repeat=n)
    )
    assert by_prefix == pytest.approx(expected, abs=TOLERANCE)


def test_expected_accepted_counts_what_was_drafted():
    """Catches counts beyond EOS or the length limit, mixed up rows, and NaN from unused positions."""
    accept_prob = torch.tensor([[0.5, 0.5, 1.0], [1.0, 0.0, 1.0], [0.25, float("nan"), 1.0], [0.5, 0.5, 0.5]])
    found = expected_accepted(accept_prob, torch.tensor([3, 3, 1, 0]))
    assert found.tolist() == [0.5 + 0.25 + 0.25, 1.0, 0.25, 0.0]
    assert found.dtype == torch.float64
    assert expected_accepted(accept_prob[0]) == 1.0


@given(seed=seeds, weight=st.floats(0.0, 1.0))
@settings(max_examples=50, deadline=None)
def test_acceptance_is_one_minus_w_tv(seed: int, weight: float):
    """Catches a weight applied to the draft, and TV without its factor 1/2."""
    p, q = random_distributions(seed, 4, 5)
    v = weight * p + (1.0 - weight) * q
    torch.testing.assert_close(expected_acceptance(p, q, weight), torch.minimum(q, v).sum(-1), rtol=0, atol=TOLERANCE)


@given(rate=st.floats(0.0, 1.0), gamma=st.integers(0, 12))
def test_iid_length_is_the_sum_of_powers(rate: float, gamma: int):
    """Catches division by 0 at rate 1, loss of precision near it, and a sum that starts at rate^0."""
    expected = math.fsum(rate**n for n in range(1, gamma + 1))
    assert iid_accepted_length(rate, gamma) == pytest.approx(expected, rel=1e-9, abs=TOLERANCE)


def test_iid_length_at_its_ends():
    assert iid_accepted_length(0.0, 5) == 0.0
    assert iid_accepted_length(1.0, 4.5) == 4.5
    assert iid_accepted_length(1.0 - 1e-12, 5) == pytest.approx(5.0, abs=1e-9)
    assert iid_accepted_length(0.5, 1.5) == pytest.approx(1.0 - 0.5**1.5)
    for rate, gamma, name in ((1.1, 5, "rate"), (float("nan"), 5, "rate"), (0.5, -1, "gamma")):
        with pytest.raises(ValueError, match=f"`{name}`"):
            iid_accepted_length(rate, gamma)


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
        speeds = [expected_speedup(iid_accepted_length(0.8, gamma), gamma, times) for gamma in range(1, 31)]
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
