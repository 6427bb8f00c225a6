"""Padded attention heads give the same logits."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from embedded.export import HEAD_SIZE, export_demo_pair, pad_heads
from hf_diversed.head import DiversedHead


@pytest.mark.parametrize(("head_dim", "size"), [(8, 12), (4, 32)])
def test_padding_changes_no_logit(head_dim, size):
    """Catches wrong pairs in the rotation, angles of another width, and scores with another scale."""
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 16, "num_hidden_layers": 2}
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim)
    model = LlamaForCausalLM(config).eval()
    wide = pad_heads(model, size)
    ids = torch.randint(0, 50, (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(wide(ids).logits, model(ids).logits, rtol=0.0, atol=1e-5)
    assert wide.config.head_dim == size
    assert pad_heads(wide, size) is wide


def test_exports_what_an_engine_loads(tmp_path):
    """Catches a folder without a tokenizer, and missing heads."""
    export_demo_pair(tmp_path)
    for role in ("target", "draft"):
        config = AutoModelForCausalLM.from_pretrained(tmp_path / role).config
        assert config.head_dim in (HEAD_SIZE, 64)
        assert len(AutoTokenizer.from_pretrained(tmp_path / role)) == config.vocab_size
    assert DiversedHead.from_pretrained(tmp_path / "heads" / "math").needs_token
    assert not DiversedHead.from_pretrained(tmp_path / "mixture-heads" / "math").needs_token
