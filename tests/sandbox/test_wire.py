"""Values between a program and its tests."""

import contextlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.sandbox.jail import wire


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


def no_place(thing) -> int:
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
    assert same(wire.decode(wire.encode(value, no_place), no_place), value)


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def test_subclasses_arrive_as_their_base():
    """Catches a type of the program's, with its own idea of `==`, in the tests' process."""
    assert type(wire.decode(wire.encode(Liar(3), no_place), no_place)) is int
    assert wire.decode(wire.encode([Liar(3)], no_place), no_place) != [4]


def test_other_things_stay_where_they_are():
    assert wire.decode(wire.encode([object, 1], lambda thing: 7), lambda place: f"thing {place}") == ["thing 7", 1]


@given(st.binary(max_size=60) | VALUES.map(lambda value: wire.encode(value, no_place)[:-1]))
def test_nonsense_is_an_error_and_no_crash(data):
    """Catches a reader that trusts announced sizes."""
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, OverflowError):
        wire.decode(data, no_place)


def test_large_announcements_are_refused():
    """Catches a program that lets the tests' process wait for, or allocate, 4 GiB."""
    ours, theirs = os.pipe()
    os.write(theirs, b"\xff" * 4)
    with pytest.raises(ValueError, match="4294967295 bytes announced"):
        wire.receive(ours)
    os.close(theirs)
    with pytest.raises(EOFError):
        wire.receive(ours)
    os.close(ours)
    with pytest.raises(ValueError, match="too large"):
        wire.send(theirs, b"x" * (wire.MOST_BYTES + 1))
