"""Static shapes as arguments of `generate`, and a call that is decoded with and without them."""

import pytest
import torch
from transformers import CompileConfig, StoppingCriteria, StoppingCriteriaList

from hf_diversed import StaticEnsembleVerifier
from tests.tiny import first_layers, ragged_batch


# Traces the functions and runs the graphs op by op, which takes seconds instead of minutes.
TRACED = {"cache_implementation": "static", "compile_config": CompileConfig(backend="eager", mode="default")}
STATIC = {"cache_implementation": "static", "disable_compile": True}
COMPILED = {"cache_implementation": "static", "compile_config": CompileConfig(mode="default")}
SMALL = {"num_assistant_tokens": 2, "max_new_tokens": 14, "do_sample": False, "return_dict_in_generate": True}


class Interrupting(StoppingCriteria):
    """Raises RuntimeError once the ids have more than 12 columns."""

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] > 12:
            raise RuntimeError("interrupted")
        return torch.zeros(len(input_ids), dtype=torch.bool)


def shallow(pair):
    """Return copies with one layer, which are traced in half the time."""
    return tuple(first_layers(model, 1) for model in pair)


def run_untraced(monkeypatch) -> None:
    """Run functions without tracing them, for tests of which are kept and when they are compiled anew."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


def decode(pair, mode: dict, verifier=None, batch=None, **settings):
    target, draft = pair
    batch = ragged_batch() if batch is None else batch
    verifier = StaticEnsembleVerifier(0.6) if verifier is None else verifier
    return target.generate(**batch, assistant_model=draft, verifier=verifier, **{**SMALL, **settings, **mode})


def interrupt(pair, mode: dict) -> None:
    """Start a call that ends in an error after its first rounds."""
    with pytest.raises(RuntimeError, match="interrupted"):
        decode(pair, mode, stopping_criteria=StoppingCriteriaList([Interrupting()]))


def assert_same(pair, mode: dict, **call):
    """Decode eagerly and in `mode`, compare the tokens, and return the output in `mode`."""
    expected, out = decode(pair, {}, **call), decode(pair, mode, **call)
    assert torch.equal(out.sequences, expected.sequences)
    assert out.stats.acceptance_rate == pytest.approx(expected.stats.acceptance_rate, nan_ok=True)
    return out
