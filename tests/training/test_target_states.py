"""The target's states: the same distributions without reading again, kept over an interruption."""

import copy
import re
from collections import namedtuple

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from hf_diversed.training import draft_tuning, target_states
from hf_diversed.training.completions import STATES, collate, completion_ids, completion_logits
from hf_diversed.training.draft_tuning import DraftTuningConfig, tune_draft
from hf_diversed.training.target_states import with_target_states
from tests.tiny import VOCAB_SIZE, tiny_draft, tiny_model
from tests.training.drafts import config, make_rows


@pytest.fixture
def target():
    return tiny_model("llama")


def make_examples(n: int = 7) -> list[dict]:
    """Prompts and completions of various lengths."""
    generator = torch.Generator().manual_seed(0)
    examples = []
    for number in range(n):
        prompt, length = 2 + number % 3, 1 + 2 * number % 5
        ids = torch.randint(4, VOCAB_SIZE, (prompt + length,), generator=generator).tolist()
        examples.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return examples


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_make_the_distributions_of_every_token(target, tmp_path, dtype):
    """Catches states of another position, of another example, and bytes read in another dtype."""
    target, examples = target.to(dtype), make_examples()
    read = with_target_states(examples, target, tmp_path, batch_size=3)
    for example, before in zip(read, examples):
        assert example["input_ids"] == before["input_ids"]
        alone = completion_logits(target, collate([before]), target)
        made = target.lm_head(example[STATES])
        assert made.dtype == dtype
        torch.testing.assert_close(made, alone, rtol=0.02, atol=1e-5 if dtype == torch.float32 else 0.02)
    batch = collate(read)
    assert len(batch[STATES]) == len(completion_ids(batch)) == sum(len(example[STATES]) for example in read)
    torch.testing.assert_close(batch[STATES], torch.cat([example[STATES] for example in read]))


def test_the_draft_learns_the_same_and_the_target_reads_once(monkeypatch, tokenizer, target, tmp_path):
    """Catches states of another batch, and a target that runs in every epoch."""
    base, options = tiny_draft(target, noise=0.5), {"max_steps": 6, "all_weights": True}
    plain = tune_draft(target, copy.deepcopy(base), tokenizer, make_rows(16), config(tmp_path / "plain", **options))
    draws = draft_tuning.sample_completions
    calls = []

    def draw(*args, **kwargs):
        drawn = draws(*args, **kwargs)
        target.model.register_forward_hook(lambda *_: calls.append(1))
        return drawn

    monkeypatch.setattr(draft_tuning, "sample_completions", draw)
    options |= {"keep_target_states": True}
    kept = tune_draft(target, copy.deepcopy(base), tokenizer, make_rows(16), config(tmp_path / "kept", **options))
    assert len(calls) == 2 + 2  # 16 examples in batches of 8, and one that is looked at twice before
    for (name, value), other in zip(plain.state_dict().items(), kept.state_dict().values()):
        torch.testing.assert_close(value, other, atol=1e-5, rtol=1e-4, msg=name)
        assert not torch.equal(value, base.state_dict()[name])


def test_an_interrupted_run_continues(monkeypatch, target, tmp_path):
    """Catches lost work, an incomplete batch that shifts all later ones, and states of other weights or texts."""
    examples, whole = make_examples(), with_target_states(make_examples(), target, tmp_path / "whole", 2)
    path, read, seen = tmp_path / "broken" / "target_states.bin", target_states._read, []

    def counted(model, batch):
        seen.append(len(batch))
        if len(seen) == 4:  # one that is looked at, then the third batch of two
            raise KeyboardInterrupt
        return read(model, batch)

    monkeypatch.setattr(target_states, "_read", counted)
    with pytest.raises(KeyboardInterrupt):
        with_target_states(examples, target, path.parent, 2)
    with path.open("ab") as file:
        file.write(b"torn")
    seen[:] = [0] * 4
    again = with_target_states(examples, target, path.parent, 2)
    assert seen[4:] == [1, 2, 1]  # three of seven were left
    for one, other in zip(whole, again):
        torch.testing.assert_close(one[STATES], other[STATES])
    for other, given, words in (
        (tiny_model("llama", seed=1), examples, "(target_weights)"),
        (target, make_examples(6), "(examples, tokens)"),
    ):
        before = path.read_bytes()
        with pytest.raises(ValueError, match=re.escape(words)):
            with_target_states(given, other, path.parent, 2)
        assert path.read_bytes() == before


def test_a_full_disk_is_found_before_hours_of_reading(monkeypatch, target, tmp_path):
    """Catches an error about the disk only when it is full."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(target_states.shutil, "disk_usage", lambda _: usage(2**40, 2**40, 100))
    monkeypatch.setattr(target_states, "completion_logits", lambda *_: pytest.fail("read all the same"))
    monkeypatch.setattr(target_states, "_check_output", lambda *_: None)
    with pytest.raises(OSError, match=r"target_states\.bin could not be written: it would grow by 0\.0 GiB"):
        with_target_states(make_examples(), target, tmp_path, 2)


def last_steps(kind, config):
    """A model that changes its logits after the output embedding, with logits of the size of trained models'."""
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config.update(sizes | {"num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["full_attention"]})
    model = kind(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.normal_(0.0, 5.0)
    return model


def test_capped_logits_are_refused(tmp_path):
    """Catches distributions without the changes that a model makes after its output embedding."""
    model = last_steps(Gemma2ForCausalLM, Gemma2Config(final_logit_softcapping=30.0, head_dim=8))
    with pytest.raises(ValueError, match="Gemma2ForCausalLM caps them"):
        with_target_states(make_examples(), model, tmp_path, 2)


def test_scaled_logits_are_served(tmp_path):
    """Catches a scale that is lost, or applied twice."""
    model = last_steps(GraniteForCausalLM, GraniteConfig(logits_scaling=4.0))
    for example, before in zip(with_target_states(make_examples(), model, tmp_path, 2), make_examples()):
        made = model.get_output_embeddings()(example[STATES])
        torch.testing.assert_close(made, completion_logits(model, collate([before]), model), rtol=1e-4, atol=1e-4)


def test_settings_are_checked(tmp_path):
    with pytest.raises(ValueError, match='keep_target_states=True needs mode="distill" in one process'):
        DraftTuningConfig(str(tmp_path), mode="supervised", keep_target_states=True)
