"""The multiplier: its direction, its guards against windup, and its effect on the loss."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.training import constraint as module
from hf_diversed.training.constraint import MAX_COEF, MAX_STEP, MIN_COEF, WINDOW, Constraint


HALF = WINDOW // 2
batches = st.lists(st.tuples(st.integers(1, 2000), st.floats(-1.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=40)


def fed(*given: tuple[float, float], count: int = HALF, max_drop: float = 0.1, coef: float = 0.3) -> Constraint:
    """Return a constraint after batches of `count` rollouts with (drop, acceptance)."""
    constraint = Constraint(max_drop, coef)
    for drop, acceptance in given:
        constraint.update(count, drop, acceptance)
    return constraint


@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches, st.floats(0.0, 0.3))
def test_stays_within_its_bounds_and_its_pace(given, max_drop: float):
    """Catches unbounded steps: one bad batch must not change c much, and c must stay within its bounds."""
    constraint = Constraint(max_drop, 0.3)
    for count, drop, acceptance in given:
        before = constraint.coef
        constraint.update(count, drop, acceptance)
        assert MIN_COEF <= constraint.coef <= MAX_COEF
        assert abs(math.log(constraint.coef / before)) <= MAX_STEP + 1e-9


@pytest.mark.parametrize(
    ("improving", "constant", "direction"),
    [(lambda step: (0.0, 0.3 + 0.05 * step), (0.0, 0.8), 1), (lambda step: (0.9 - 0.05 * step, 0.8), (0.45, 0.8), -1)],
    ids=["acceptance rises", "the drop shrinks"],
)
def test_waits_while_the_head_improves(improving, constant, direction: int):
    """Catches windup: a head whose acceptance rises or whose drop shrinks by itself needs no other c."""
    moving = [improving(step) for step in range(10)]
    assert fed(*moving, count=WINDOW // 10).coef == 0.3
    found = fed(*moving, *[constant] * 10, count=WINDOW // 10)
    assert math.copysign(1, found.coef - 0.3) == direction


def test_recovers_from_its_upper_bound():
    """Catches windup: after a long time at the bound, the first windows with a larger drop must already lower c."""
    constraint = fed(*[(0.0, 0.8)] * 100)
    assert constraint.coef == MAX_COEF
    for _ in range(2):
        constraint.update(HALF, 0.5, 0.8)
    assert constraint.coef < MAX_COEF
    assert fed(*[(0.9, 0.8)] * 100).coef == MIN_COEF


def test_the_effective_coefficient_follows_the_last_batches():
    """Catches an acceptance term that still affects a head which rejects too little to learn, and a head within the
    bound whose acceptance is still discounted because of old rollouts."""
    constraint = fed()
    assert constraint.effective_coef == 0.3
    constraint.update(WINDOW, 0.1 + module.MAX_EXCESS / 2, 0.9)
    assert constraint.effective_coef == pytest.approx(constraint.coef / 2)
    constraint.update(WINDOW, 0.9, 0.9)
    assert constraint.effective_coef == 0.0 < constraint.coef
    constraint = fed((0.9, 0.9), (0.9, 0.9), (0.0, 0.9), (0.15, 0.9), count=WINDOW // 10)
    assert constraint.drop > 0.1
    assert constraint.effective_coef == constraint.coef
