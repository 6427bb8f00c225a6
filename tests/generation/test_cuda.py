"""Both engines on a CUDA device, with CUDA graphs and on several devices; skipped without one.

`HF_DIVERSED_DEVICE=cpu` runs the same tests on the CPU, without graphs, to check the tests themselves.
"""

import copy
import os

import pytest
import torch
from transformers import CompileConfig

from tests.generation.modes import STATIC, TRACED, decode
from tests.tiny import ragged_batch, tiny_draft, tiny_model


DEVICE = os.environ.get("HF_DIVERSED_DEVICE", "cuda")
ON_CPU = DEVICE == "cpu"
pytestmark = pytest.mark.skipif(not ON_CPU and not torch.cuda.is_available(), reason="needs a CUDA device")
# The default of transformers, "reduce-overhead", uses CUDA graphs.
GRAPHS = TRACED if ON_CPU else {"cache_implementation": "static", "compile_config": CompileConfig()}


@pytest.fixture(scope="module")
def pair():
    target = tiny_model("llama")
    return target, tiny_draft(target)


def on_device(pair, *devices: str):
    return tuple(copy.deepcopy(model).to(device) for model, device in zip(pair, devices))


def batch(size: int) -> dict[str, torch.Tensor]:
    return {name: values.to(DEVICE) for name, values in ragged_batch(size).items()}


@pytest.mark.parametrize("mode", [{}, STATIC, GRAPHS], ids=["eager", "static", "graphs"])
@pytest.mark.parametrize("size", [1, 4])
def test_greedy_lossless_equals_the_target(pair, size: int, mode: dict):
    """Catches an engine that changes tokens on a device: lossless greedy decoding is that of the target alone."""
    pair, rows = on_device(pair, DEVICE, DEVICE), batch(size)
    expected = pair[0].generate(**rows, max_new_tokens=14, do_sample=False)
    for _ in range(3):  # the second and third call replay what the first one has captured
        out = decode(pair, mode, "lossless", batch=rows)
        assert torch.equal(out.sequences[:, : expected.shape[1]], expected)
        assert out.stats.engine == {id(STATIC): "static", id(GRAPHS): "compiled"}.get(id(mode), "eager")


@pytest.mark.parametrize("mode", [STATIC, GRAPHS], ids=["static", "graphs"])
def test_records_equal_those_of_the_eager_engine(pair, mode: dict):
    """Catches tensors of one round that the next replay overwrites."""
    pair, records = on_device(pair, DEVICE, DEVICE), []
    # One row: engines drop finished rows at different times, which changes the random numbers of the others.
    call = {"batch": batch(1), "do_sample": True, "top_k": 0, "output_token_records": True}
    for each in ({}, mode):
        torch.manual_seed(0)
        records.append(decode(pair, each, "static:0.5", **call).token_records)
    assert torch.equal(records[0].tokens, records[1].tokens)
    assert torch.allclose(records[0].log_prob, records[1].log_prob, atol=1e-4, equal_nan=True)


def test_models_on_two_devices(pair):
    """Catches tensors that stay on the draft model's device."""
    other = "cpu" if ON_CPU or torch.cuda.device_count() < 2 else "cuda:1"
    alone, apart = on_device(pair, DEVICE, DEVICE), on_device(pair, DEVICE, other)
    rows = batch(4)
    expected, out = (decode(each, {}, "static:0.5", batch=rows) for each in (alone, apart))
    assert torch.equal(out.sequences, expected.sequences)
