"""The order of prompts in training."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.training.rollout import RolloutOrder


search = settings(max_examples=60, deadline=None, derandomize=True)


def order(num_prompts=7, batch_size=8, num_generations=2, num_iterations=3, num_updates=12, seed=0) -> RolloutOrder:
    return RolloutOrder(num_prompts, batch_size, num_generations, num_iterations, num_updates, seed)


def groups(sampler: RolloutOrder) -> list[list[int]]:
    """Indices by update."""
    indices = list(sampler)
    return [indices[start : start + sampler.batch_size] for start in range(0, len(indices), sampler.batch_size)]


@search
@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5))
def test_length_is_that_of_the_run(prompts: int, per_batch: int, generations: int, iterations: int, rollouts: int):
    """Catches a data loader that ends before the run, or starts a second epoch."""
    sampler = order(prompts, per_batch * generations, generations, iterations, iterations * rollouts)
    assert len(list(sampler)) == len(sampler) == per_batch * generations * iterations * rollouts


def test_updates_of_one_rollout_see_the_same_prompts():
    """Catches updates with the prompts of other rollouts, and divided groups, of which devices would get parts."""
    found = groups(order())
    assert all(found[k] == found[k - k % 3] for k in range(12))
    assert found[0] != found[3]
    assert all(group[::2] == group[1::2] for group in found)


def test_prompts_take_turns():
    """Catches prompts drawn with replacement: each must be drawn once before one is repeated."""
    found = [index for group in groups(order(num_updates=42))[::3] for index in group[::2]]
    assert len(found) == 56
    assert [sorted(found[start : start + 7]) for start in range(0, 56, 7)] == [list(range(7))] * 8
    assert len({tuple(found[start : start + 7]) for start in range(0, 56, 7)}) > 1


def test_fewer_prompts_than_a_batch_holds():
    """Catches an endless, empty or failing draw for few prompts."""
    found = groups(order(num_prompts=3, batch_size=12))
    assert [Counter(group) for group in found] == [{0: 4, 1: 4, 2: 4}] * 12


def test_order_is_a_function_of_the_seed():
    """Catches an order that depends on the number of earlier draws, which a resumed run could not reproduce."""
    sampler = order()
    assert list(sampler) == list(sampler) == list(order())
    assert list(order(seed=1)) != list(order())


@pytest.mark.parametrize("more", [15, 60])
def test_a_longer_run_begins_as_a_shorter_one(more: int):
    """Catches an order that depends on the length of the run, so that a run could not be extended."""
    short = list(order())
    assert list(order(num_updates=more))[: len(short)] == short
