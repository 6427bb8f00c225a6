"""Training of heads with token features: their start, their baseline, and what they learn."""

import json

import pytest
import torch

from hf_diversed.provenance import module_digest
from hf_diversed.training import DiversedTrainer
from tests.training import runs
from tests.training.test_trainer import TOKEN, history


@pytest.mark.parametrize("head_type", ["linear", "mlp"])
def test_starts_at_the_lenience_and_stays_there(tmp_path, head_type: str):
    """Catches a start that changes when the inputs are scaled, or that differs from the requested one."""
    start = {"head_type": head_type, "initial_lenience": 0.1, "learning_rate": 0.0}
    trainer = runs.trained(tmp_path, **TOKEN, **start, max_steps=2)
    batch, head = trainer.batch, trainer.model
    assert head.input_std[-5] != 1.0
    ratio = batch.inputs["token"][..., 0]
    torch.testing.assert_close(batch.old_logit, 2.0 * (torch.tensor(0.1).log() - ratio), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head.ratio_slope(), torch.tensor(2.0), rtol=1e-4, atol=1e-4)
    assert history(trainer, "ratio") == [1.0]


def test_settings_follow_the_head_that_is_given(tmp_path):
    """Catches a given head that is trained with the settings of the other kind."""
    head = runs.trainer(tmp_path / "first", **TOKEN).model
    settings = runs.config(tmp_path / "second")
    trainer = DiversedTrainer(
        *runs.pair(),
        head,
        reward_funcs=by_prompt,
        args=settings,
        train_dataset=runs.rows(),
        processing_class=runs.tokenizer(),
    )
    assert (trainer.args.clip_range, trainer.args.baseline) == (0.5, "prompt")
    assert (settings.clip_range, settings.baseline) == (None, None)  # they may be used for a mixture head
    trainer.save_model()
    found = json.loads((tmp_path / "second" / "provenance.json").read_text())
    assert found["continued_from"] == module_digest(head)
    assert "token_features" not in found["training"]
    with pytest.raises(ValueError, match="head_type can only be set for a new head, but head= was given"):
        runs.trainer(tmp_path / "third", head=head, head_type="mlp")


def test_training_again_continues(tmp_path, monkeypatch):
    """Catches a second call of `train` that resets the head to its initial prediction."""
    trainer = runs.trained(tmp_path, **TOKEN, max_steps=2)
    monkeypatch.setattr(trainer, "_standardize", pytest.fail)
    trainer.train()
    assert trainer.state.global_step == 2


def by_prompt(completions, number, **columns) -> list[float]:
    return [float(index) for index in number]


def test_rewards_that_depend_on_the_prompt_only_have_no_effect(tmp_path):
    """Catches rollouts that are compared with those of other prompts."""
    trainer = runs.trained(tmp_path, by_prompt, **TOKEN, max_steps=2)
    assert (trainer.batch.advantage == 0.0).all()
    trainer = runs.trained(tmp_path / "batch", by_prompt, **TOKEN, baseline="batch", max_steps=2)
    assert (trainer.batch.advantage != 0.0).any()


def test_baseline_leaves_one_out(tmp_path):
    """Catches groups with rows of other prompts."""
    trainer = runs.trained(tmp_path, **TOKEN, max_steps=2)
    advantage = trainer.batch.advantage
    one, other = advantage.view(-1, 2).unbind(1)
    torch.testing.assert_close(one, -other)
    assert advantage.abs().max() > 0.0
