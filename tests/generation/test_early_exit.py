"""Draft tokens from the target's first layers: the view that computes them, and the loop with it."""

import copy

import pytest
import torch

from hf_diversed import DiversedVerifier, model_facts
from tests.generation.test_verifiers import assert_naive
from tests.tiny import num_hooks, ragged_batch, tiny_head, tiny_model


ARCHITECTURES = ["llama", "gemma3_text", "gemma3_multimodal", "gpt2", "opt", "qwen3_moe"]


def exits_early(target, verifier, inputs, **kwargs):
    settings = {"max_new_tokens": 16, "do_sample": False, "return_dict_in_generate": True, "num_assistant_tokens": 3}
    return target.generate(**inputs, verifier=verifier, assistant_early_exit=1, **{**settings, **kwargs})


@torch.no_grad()
def upstream_logits(model, ids, layers):
    """Upstream's early exit: the layer count of the model's own config, changed for the time of a call."""
    config = model.get_decoder().config
    saved, config.num_hidden_layers = config.num_hidden_layers, layers
    try:
        return model(ids, use_cache=False).logits
    finally:
        config.num_hidden_layers = saved


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_view_leaves_after_its_layers(architecture):
    """Catches a view that runs every layer, as upstream's does for some models, or lacks the final norm."""
    model = tiny_model(architecture)
    ids = ragged_batch()["input_ids"][:2].clamp_min(4)
    view = model_facts.first_layers(model, 1)
    other = copy.deepcopy(model)
    for parameter in [p for name, p in other.named_parameters() if "layers.1." in name or "h.1." in name]:
        parameter.normal_()
    assert not torch.allclose(other(ids).logits, model(ids).logits, atol=1e-2)
    assert torch.equal(model_facts.first_layers(other, 1)(ids).logits, view(ids).logits)
    assert not torch.allclose(view(ids).logits, model(ids).logits, atol=1e-2)
    if architecture in ("llama", "gemma3_text", "qwen3_moe"):
        assert torch.equal(view(ids).logits, upstream_logits(model, ids, 1))


@pytest.mark.parametrize("architecture", ["gemma3_text", "gpt2"])
def test_lossless_greedy_is_plain_generate(architecture):
    """Invariant 1. Catches a view and a target that write into one cache, or masks of a missing layer."""
    target, inputs = tiny_model(architecture), ragged_batch()
    out = exits_early(target, "lossless", inputs)
    assert torch.equal(out.sequences, target.generate(**inputs, max_new_tokens=16, do_sample=False))
    assert out.stats.draft_forwards > out.stats.target_forwards
    assert 0 < out.stats.num_accepted < out.stats.num_drafted


def test_compiled_modules():
    """Catches a view that calls the original modules, which `module.compile()` binds to themselves."""
    target, inputs = tiny_model("llama"), ragged_batch()
    expected = target.generate(**inputs, max_new_tokens=16, do_sample=False)
    target.compile(backend="eager")
    for layer in target.model.layers:
        layer.compile(backend="eager")
    assert torch.equal(exits_early(target, "lossless", inputs).sequences, expected)
    lossless = DiversedVerifier(tiny_head(), 1.0)  # reads hidden states
    call = {"max_new_tokens": 16, "do_sample": False}
    assert torch.equal(target.generate(**inputs, **call, assistant_model=target, verifier=lossless), expected)
    assert num_hooks(target) == 0


def test_fast_path_equals_naive_reference():
    """Invariants 2 and 12: rows equal their single runs, and heads receive the hidden states of the early exit."""
    target, verifier, inputs = tiny_model("llama"), DiversedVerifier(tiny_head()), ragged_batch()
    fast = exits_early(target, verifier, inputs).sequences
    for row in range(4):
        assert_naive((target, model_facts.first_layers(target, 1)), verifier, inputs, fast, row, 3, 16)


def test_model_is_unchanged():
    """Invariant 13. Catches a changed layer count, and upstream's output hooks that stay on shared layers."""
    target = tiny_model("llama")

    def snapshot():
        return target.config.to_dict(), [set(vars(m)) for m in target.modules()], num_hooks(target)

    view = model_facts.first_layers(target, 1)
    before = snapshot()
    ids = ragged_batch()["input_ids"]
    assert len(view(ids, output_hidden_states=True).hidden_states) == 2
    assert snapshot() == before
    assert {p.data_ptr() for p in view.parameters()} < {p.data_ptr() for p in target.parameters()}
    for _ in range(2):
        exits_early(target, DiversedVerifier(tiny_head()), ragged_batch())
        assert target.config.to_dict() == before[0]
        assert len(target(ids, output_hidden_states=True).hidden_states) == 3
