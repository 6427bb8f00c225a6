"""Values between a program and its tests."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.sandbox.jail import values


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(ATOMS, inner)
        | st.sets(ATOMS)
        | st.frozensets(ATOMS)
        | st.builds(range, st.integers(), st.integers(), st.integers(1))
        | st.binary().map(bytearray)
    ),
    max_leaves=12,
)


def no_number(thing) -> int:
    raise TypeError(type(thing).__name__)


def same(left, right) -> bool:
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (set, frozenset)):
        return sorted(map(repr, left)) == sorted(map(repr, right))
    return repr(left) == repr(right)


@given(VALUES)
def test_what_arrives_is_what_was_sent(value):
    """Catches a tuple that arrives as a list, -0.0 as 0.0, True as 1, and a text that cannot be encoded."""
    assert same(values.decode(values.encode(value, no_number), no_number), value)


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def test_subclasses_arrive_as_their_base():
    """Catches a type of the program's, with its own idea of `==`, in the tests' process."""
    assert type(values.decode(values.encode(Liar(3), no_number), no_number)) is int
    assert values.decode(values.encode([Liar(3)], no_number), no_number) != [4]


def test_other_things_stay_where_they_are():
    assert values.decode(values.encode([object, 1], lambda thing: 7), lambda place: f"thing {place}") == ["thing 7", 1]


@given(st.binary(max_size=60) | VALUES.map(lambda value: values.encode(value, no_number)[1:]))
def test_nonsense_is_an_error_and_no_crash(data):
    """Catches a reader that trusts the sender's format."""
    with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
        values.decode(data, no_number)


@pytest.mark.parametrize("line", [b'["list",' * 10**5, b'["list",[' * 10**5 + b"]]" * 10**5])
def test_deep_nonsense_is_an_error_and_no_crash(line):
    """Catches a reader whose recursion ends the tests' process."""
    with pytest.raises((ValueError, RecursionError)):
        values.decode(line, no_number)


def test_long_and_truncated_lines_are_refused(monkeypatch):
    """Catches a program that lets the tests' process read without end."""
    monkeypatch.setattr(values, "MOST_BYTES", 100)
    for line in (b"x" * 200 + b"\n", b"[1"):
        with pytest.raises(ValueError, match="at most 100 bytes"):
            values.read_line(io.BytesIO(line))
    with pytest.raises(EOFError):
        values.read_line(io.BytesIO())
    with pytest.raises(ValueError, match="too large"):
        values.encode("x" * 100, no_number)
