"""The EAGLE-3 head: its chain against one token at a time, and training."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file

from embedded import eagle3
from embedded.recipe import Recipe
from hf_diversed import load_demo_pair


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


@torch.no_grad()
def test_chain_equals_decoding_one_token_at_a_time(pair):
    """Catches a step that attends to its own keys of another position, wrong rotary positions, and a shifted input."""
    torch.manual_seed(0)
    head, length = eagle3.Eagle3Head(pair.target), 7
    states, embeddings = torch.randn(2, length, 3 * 256), torch.randn(2, length, 256)
    found = head(states, embeddings)
    for start in range(length - eagle3.CHAIN - 1):
        known = head.fc(states[:, : start + 1])
        for step in range(eagle3.CHAIN):
            count = start + step + 1
            state = head.midlayer(embeddings[:, 1 : count + 1], known, [])[:, -1:]
            torch.testing.assert_close(found[step][:, start], head.lm_head(head.norm(state))[:, 0])
            known = torch.cat([known, state], dim=1)


def test_training_learns_a_text_and_saves_what_vllm_reads(pair, tmp_path, capsys, monkeypatch):
    """Catches goals of another token, and parameters under other names."""
    batch = {
        name: values[:2, :24] for name, values in next(eagle3.batches(Recipe(), "target", pair.tokenizer, 0)).items()
    }
    monkeypatch.setattr(eagle3, "batches", lambda *_: itertools.repeat(batch))
    monkeypatch.setattr(eagle3, "NUM_HELD_OUT", 1)
    eagle3.main(["--output", str(tmp_path), "--steps", "50"])
    assert min(json.loads((tmp_path / "training.json").read_text())["accepted"]) > 0.5
    names = {name.removesuffix(".weight") for name in load_file(tmp_path / "model.safetensors")}
    projections = {f"midlayer.self_attn.{name}_proj" for name in "qkvo"}
    projections |= {f"midlayer.mlp.{name}_proj" for name in ("gate", "up", "down")}
    norms = {f"midlayer.{name}" for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    assert names == projections | norms | {"fc", "norm", "lm_head"}
    assert "by step" in capsys.readouterr().out
