"""The ways to run a call's rounds, as arguments of `generate`, and a call that is run both ways."""

import pytest
import torch
from transformers import CompileConfig

from hf_diversed import StaticEnsembleVerifier
from tests.tiny import ragged_batch


# Traces as inductor would see it and runs the graph op by op: seconds where compiling takes a minute.
TRACED = {"cache_implementation": "static", "compile_config": CompileConfig(backend="eager", mode="default")}
STATIC = {"cache_implementation": "static", "disable_compile": True}
COMPILED = {"cache_implementation": "static", "compile_config": CompileConfig(mode="default")}
SMALL = {"num_assistant_tokens": 2, "max_new_tokens": 14, "do_sample": False, "return_dict_in_generate": True}


def decode(pair, mode: dict, verifier=None, batch=None, **settings):
    target, draft = pair
    batch = ragged_batch() if batch is None else batch
    verifier = StaticEnsembleVerifier(0.6) if verifier is None else verifier
    return target.generate(**batch, assistant_model=draft, verifier=verifier, **{**SMALL, **settings, **mode})


def assert_same(pair, mode: dict, **call):
    """Decodes the same both ways, in `mode` by the engine that it names; returns the latter's output."""
    expected, out = decode(pair, {}, **call), decode(pair, mode, **call)
    assert torch.equal(out.sequences, expected.sequences)
    assert out.stats.acceptance_rate == pytest.approx(expected.stats.acceptance_rate, nan_ok=True)
    assert out.stats.compile.num_recompiled == 0
    return out
