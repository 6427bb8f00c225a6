"""`benchmarks/turns.py`: the order of alternating calls and what is reported about them."""

import pytest

from benchmarks import turns
from benchmarks.turns import spread, take_turns


def test_calls_alternate(monkeypatch):
    """Catches a call that always runs first, a result under another name, and seconds of another call."""
    now, order = 0.0, []
    monkeypatch.setattr(turns.time, "process_time", lambda: now)

    def call(name: str, seconds: float, turn: int) -> str:
        nonlocal now
        now += seconds
        order.append(name)
        return f"{name}{turn}"

    durations = {"a": 1.0, "b": 2.0, "c": 4.0}
    calls = {name: lambda turn, name=name: call(name, durations[name], turn) for name in durations}
    found = list(take_turns(calls, 3))
    assert "".join(order) == "abcbcacab"
    assert [list(results) for results in found] == [list(durations)] * 3
    for turn, results in enumerate(found):
        assert results == {name: (f"{name}{turn}", seconds) for name, seconds in durations.items()}


@pytest.mark.parametrize(
    ("values", "expected"), [([3.0], (3.0, 3.0, 3.0)), ([4.0, 1.0, 2.0, 3.0, 5.0], (2.0, 3.0, 4.0))]
)
def test_spread(values, expected):
    """Catches values that are not sorted, quartiles beyond the values, and a single value that fails."""
    low, median, high = expected
    assert spread(values) == {"median": median, "quartiles": [low, high]}
