"""Where an attachment is active: in the `with` block of its caller, in the same thread or task."""

import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import hf_diversed
from tests.tiny import ragged_batch


@pytest.fixture
def weight(pair):
    """Return a function that decodes without arguments and returns the weight of its verifier; None without one."""

    def decode() -> float | None:
        with hf_diversed.record_stats() as stats:
            pair[0].generate(**ragged_batch(), max_new_tokens=8, do_sample=False)
        return stats.mean_weight if stats.num_rounds else None

    return decode


def test_a_block_is_active_in_its_context_only(pair, weight):
    """Catches a block that is active in other threads, and one that a thread cannot be started in."""
    with hf_diversed.attach(*pair, verifier="static:0"), ThreadPoolExecutor(1) as thread:
        assert weight() == 0.0
        assert thread.submit(weight).result() is None
        assert thread.submit(contextvars.copy_context().run, weight).result() == 0.0


def test_the_innermost_block_is_active_until_it_ends(pair, weight):
    """Catches an outer block that takes precedence, and an attachment that outlives its block or an error in it."""
    with hf_diversed.attach(*pair, verifier="static:0"):
        with suppress(ZeroDivisionError), hf_diversed.attach(*pair, verifier="static:1"):
            assert weight() == 1.0
            raise ZeroDivisionError
        assert weight() == 0.0
    assert weight() is None
