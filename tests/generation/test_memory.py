"""Memory that follows the text, and the precision of probabilities."""

import copy

import pytest
import torch

from hf_diversed import cache as ragged_cache
from hf_diversed.generation import rows
from tests.generation.modes import STATIC
from tests.tiny import EOS, generate, ragged_batch, tiny_head


@pytest.mark.parametrize("mode", [{}, STATIC])
def test_memory_that_grows_with_the_text(pair, monkeypatch, rows_left, mode):
    """Catches ids, positions and masks that are lost where they are enlarged, also after rows have left."""
    monkeypatch.setattr(rows, "SMALLEST_WIDTH", 1)
    monkeypatch.setattr(ragged_cache, "_ALIGNMENT", 1)
    inputs, call = ragged_batch(8), {"max_new_tokens": 50, "do_sample": False}
    text = pair[0].generate(**inputs, **call)[:, inputs["input_ids"].shape[1] :]
    call["eos_token_id"] = text[[0, 2, 5], [3, 12, 30]].tolist()
    ours = generate(pair, verifier="lossless", **inputs, **call, **mode)
    assert torch.equal(ours.sequences, pair[0].generate(**inputs, **call))
    assert rows_left or mode  # without compiled rounds of fewer rows, all rows stay


def test_memory_does_not_grow_with_the_limit(pair):
    """Catches ids, positions or masks for the longest text of a call; `max_length` of some checkpoints is 1e30."""
    call = {**ragged_batch(), "do_sample": False}
    text = pair[0].generate(**call, max_new_tokens=8)
    call["eos_token_id"] = [EOS, *text[:, -1].tolist()]
    expected = pair[0].generate(**call, max_new_tokens=8)
    ours = pair[0].generate(**call, max_length=10**30, assistant_model=pair[1], verifier="lossless")
    assert torch.equal(ours, expected)


def test_probabilities_of_half_precision_models(pair):
    """Catches probabilities that are computed in bfloat16, and dtypes of models and a float32 head that are mixed."""
    models = tuple(copy.deepcopy(model).to(torch.bfloat16) for model in pair)
    torch.manual_seed(0)
    returned = {"output_logits": True, "output_token_records": True}
    head = {"diversed_head": tiny_head(features="both"), "diversed_strictness": 0.9}
    out = generate(models, **head, max_new_tokens=20, **returned)
    assert out.logits[0].dtype == torch.float32
    records, probs = out.token_records, torch.stack(out.logits, dim=1).double().softmax(dim=-1)
    expected = probs.gather(-1, records.tokens[..., None])[..., 0]
    for source in range(3):
        chosen = records.source == source
        assert chosen.any()
        torch.testing.assert_close(records.p[chosen].double(), expected[chosen], rtol=1e-4, atol=0.0)
