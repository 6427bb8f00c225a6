"""The multiplier: its direction, its guards against windup, and its state."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.training.constraint import ConstraintCallback
from hf_diversed.training.settings import MIN_WINDOW


WINDOW = 100
search = settings(max_examples=100, deadline=None, derandomize=True)
batches = st.lists(st.tuples(st.integers(1, 80), st.floats(-1.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=40)


def constraint(**given) -> ConstraintCallback:
    usual = {"max_drop": 0.1, "coef": 0.3, "low": 0.01, "high": 1.0, "learning_rate": 0.2, "window": WINDOW}
    return ConstraintCallback(**(usual | given))


def feed(callback: ConstraintCallback, drop: float, times: int, acceptance: float = 0.8) -> list[float]:
    """c after each of `times` batches with the same figures, two of which fill the window."""
    found = []
    for _ in range(times):
        callback.update(WINDOW // 2, drop, acceptance)
        found.append(callback.coef)
    return found


@search
@given(batches, st.floats(0.0, 1.0), st.floats(0.0, 0.3))
def test_stays_within_its_bounds_and_its_pace(given, rate: float, max_drop: float):
    """Catches unbounded steps: one bad batch must not change c much, and c must stay in [low, high]."""
    callback = constraint(low=0.05, high=0.6, learning_rate=rate, max_drop=max_drop)
    for count, drop, acceptance in given:
        before = callback.coef
        callback.update(count, drop, acceptance)
        assert 0.05 <= callback.coef <= 0.6
        assert abs(math.log(callback.coef / before)) <= rate + 1e-9


def test_moves_slowly_before_the_window_is_full():
    """Catches full steps after few rollouts, whose mean is noisy."""
    early, full = constraint(), constraint()
    for _ in range(2):
        early.update(WINDOW // 20, 1.0, 0.5)
        full.update(WINDOW // 2, 1.0, 0.5)
    assert math.log(early.coef / 0.3) == pytest.approx(math.log(full.coef / 0.3) / 10)


@pytest.mark.parametrize(
    ("improving", "constant", "direction"),
    [(lambda step: (0.0, 0.3 + 0.05 * step), (0.0, 0.8), 1), (lambda step: (0.9 - 0.05 * step, 0.8), (0.45, 0.8), -1)],
    ids=["acceptance rises", "the drop shrinks"],
)
def test_waits_while_the_head_improves(improving, constant, direction: int):
    """Catches windup: a head whose acceptance rises or whose drop shrinks by itself needs no other c."""
    callback = constraint(window=10 * WINDOW)
    for step in range(10):
        callback.update(WINDOW, *improving(step))
    assert callback.coef == 0.3
    for _ in range(10):
        callback.update(WINDOW, *constant)
    assert math.copysign(1, callback.coef - 0.3) == direction


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_one_batch_has_no_trend(drop: float):
    """Catches a step after the first batch, when no trend is known."""
    callback = constraint()
    callback.update(WINDOW, drop, 0.5)
    assert callback.coef == 0.3


@pytest.mark.parametrize("count", [WINDOW, 5 * WINDOW])
def test_batches_that_fill_the_window_alone(count: int):
    """Catches a c that never changes where a single batch fills the window, as with many devices."""
    falling, rising = constraint(), constraint()
    for _ in range(3):
        falling.update(count, 0.5, 0.8)
        rising.update(count, 0.0, 0.8)
    assert falling.coef < 0.3 < rising.coef


def test_recovers_from_its_upper_bound():
    """Catches windup: after a long time at the bound, the first windows with a larger drop must already lower c."""
    callback = constraint(high=0.5, window=2 * WINDOW)
    feed(callback, 0.0, 100)
    assert callback.coef == 0.5
    assert feed(callback, 0.5, 2)[-1] < 0.5


def test_settles_where_the_drop_is_tolerated():
    """Catches dual ascent that diverges or converges elsewhere: the simulated drop grows with c, with a delay."""
    callback = constraint(max_drop=0.02, window=MIN_WINDOW)
    coef, drops = callback.coef, []
    for _ in range(600):
        coef += 0.2 * (callback.coef - coef)  # the head follows within a few updates
        drops.append(0.05 * coef)
        callback.update(256, drops[-1], 0.5 + 0.4 * coef)
    assert sum(drops[-200:]) / 200 == pytest.approx(0.02, abs=0.004)


def test_fixed_one_only_keeps_the_means():
    """Catches a fixed coefficient that changes."""
    callback = constraint(fixed=True, coef=0.0)
    assert feed(callback, 0.9, 5) == [0.0] * 5
    assert callback.drop == pytest.approx(0.9)


@pytest.mark.parametrize("max_drop", [0.0, 1e-6])
def test_no_tolerance_at_all(max_drop: float):
    """Catches a division by zero where no drop is allowed, and a c that rises at a drop of exactly that."""
    assert feed(constraint(max_drop=max_drop), 0.0, 3)[-1] == pytest.approx(0.3, rel=0.01)
    assert feed(constraint(max_drop=max_drop), 0.01, 5)[-1] < 0.2


@search
@given(batches, batches)
def test_the_state_is_complete(before, after):
    """Catches state that is missing in a checkpoint: a restored multiplier must continue bit for bit."""
    one = constraint(coef=0.2, low=0.02, high=0.9, learning_rate=0.3)
    for batch in before:
        one.update(*batch)
    state = one.state()
    other = ConstraintCallback(**state["args"])
    for name, value in state["attributes"].items():
        setattr(other, name, value)
    assert other.state() == state
    for batch in after:
        one.update(*batch)
        other.update(*batch)
    assert other.state() == one.state()


def test_acceptance_has_no_effect_far_beyond_the_bound():
    """Catches an acceptance term that still affects a head which rejects too little to learn."""
    callback = constraint()
    assert callback.effective_coef == 0.3
    callback.update(WINDOW, 0.25, 0.9)
    assert callback.effective_coef == pytest.approx(callback.coef / 2)
    callback.update(WINDOW, 0.9, 0.9)
    assert callback.effective_coef == 0.0 < callback.coef


def test_the_effective_coefficient_forgets_sooner_than_the_window():
    """Catches a head within the bound whose acceptance is still discounted because of old rollouts."""
    callback = constraint(window=10 * WINDOW)
    for drop in (0.9, 0.9, 0.0, 0.05):
        callback.update(WINDOW, drop, 0.9)
    assert callback.drop > 0.1
    assert callback.effective_coef == callback.coef
    assert constraint(fixed=True).effective_coef == 0.3


def test_falls_even_while_acceptance_rises():
    """Catches the guard above applied to the wrong figure: c must fall while the drop stays above the bound."""
    callback = constraint(window=10 * WINDOW)
    for step in range(4):
        callback.update(WINDOW, 0.5, 0.3 + 0.1 * step)
    assert callback.coef < 0.3
