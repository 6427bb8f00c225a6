"""Where an attachment is active: in the `with` block of its caller, in the same thread or task."""

import contextvars
import copy
import pickle
import threading
from contextlib import suppress

import pytest
import torch

import hf_diversed
from tests.tiny import num_hooks, ragged_batch, tiny_head


SPECS = ("static:0.0", "lossless")


@pytest.fixture
def decode(pair):
    """Return a function that decodes without arguments and returns the verifier that the text shows, or "plain"."""
    target, draft = pair
    call = {**ragged_batch(), "max_new_tokens": 16, "do_sample": False}
    expected = {verifier: target.generate(**call, assistant_model=draft, verifier=verifier) for verifier in SPECS}
    with hf_diversed.record_stats() as stats:
        expected["plain"] = target.generate(**call)
    assert stats.num_rounds == 0
    assert not torch.equal(expected["static:0.0"], expected["lossless"])

    def run() -> str:
        with hf_diversed.record_stats() as stats:
            text = target.generate(**call)
        verifier = next(verifier for verifier in SPECS if torch.equal(text, expected[verifier]))
        return verifier if stats.num_rounds else "plain"

    return run


def in_a_thread(run, context=None):
    results = []
    wrapped = (lambda: results.append(run())) if context is None else (lambda: results.append(context.run(run)))
    thread = threading.Thread(target=wrapped)
    thread.start()
    thread.join()
    return results[0]


def test_a_block_is_active_in_its_context_only(pair, decode):
    """Catches a block that is active in other threads, and one that a thread cannot be started in."""
    target, draft = pair
    with hf_diversed.attach(target, draft, verifier="static:0.0"):
        assert decode() == "static:0.0"
        assert in_a_thread(decode) == "plain"
        assert in_a_thread(decode, contextvars.copy_context()) == "static:0.0"


def test_the_innermost_block_is_active_until_it_ends(pair, decode):
    """Catches an outer block that takes precedence, and an attachment that outlives its block or an error in it."""
    target, draft = pair
    with hf_diversed.attach(target, draft, verifier="static:0.0"):
        with suppress(ZeroDivisionError), hf_diversed.attach(target, draft, verifier="lossless"):
            assert decode() == "lossless"
            raise ZeroDivisionError
        assert decode() == "static:0.0"
    assert decode() == "plain"


def test_models_can_be_pickled_after_hidden_states_were_read(pair):
    """Catches upstream's recording hooks that stay on the models: hooks cannot be pickled."""
    target, draft = (copy.deepcopy(model) for model in pair)
    for _ in range(2):
        target.generate(**ragged_batch(), assistant_model=draft, diversed_head=tiny_head(), max_new_tokens=4)
    for model in (target, draft):
        assert num_hooks(model) == 0
        pickle.loads(pickle.dumps(model))
