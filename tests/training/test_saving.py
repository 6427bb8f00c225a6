"""What the trainer writes, and what it goes on from."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file

from hf_diversed.head import DiversedHead
from hf_diversed.training.checkpoints import damage, resume_point
from tests.training import runs


def test_checkpoint_holds_the_head_alone(done):
    """Catches base models or pickled arguments in a checkpoint, and one without provenance or seal."""
    trainer, _ = done
    checkpoint = f"{trainer.args.output_dir}/checkpoint-6"
    assert set(load_file(f"{checkpoint}/model.safetensors")) == set(trainer.model.state_dict())
    assert trainer.model.num_parameters() == 9
    head = DiversedHead.from_pretrained(checkpoint)
    assert head.config.num_assistant_tokens == 3
    assert head.config.training_temperature == 1.0
    folder = resume_point(runs.Path(trainer.args.output_dir))
    assert folder == checkpoint
    listed = json.loads((runs.Path(checkpoint) / "complete.json").read_text())["sha256"]
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json", "provenance.json"} <= set(listed)
    assert "training_args.bin" not in listed
    assert sum((runs.Path(checkpoint) / name).stat().st_size for name in listed) < 100_000


def test_provenance_tells_how_it_came_about(done):
    trainer, _ = done
    found = json.loads((runs.Path(trainer.args.output_dir) / "checkpoint-4" / "provenance.json").read_text())
    assert found["step"] == 4
    assert found["seed"] == runs.TINY["seed"]
    assert found["rewards"] == ["letters", "zero"]
    assert found["training"]["reward_weights"] == [1.0, 2.0]
    assert found["training"]["num_assistant_tokens"] == 3
    logged = next(line for line in trainer.state.log_history if line["step"] == 4 and "eval_objective" in line)
    assert found["validation"]["quality_drop"] == logged["eval_quality_drop"]
    assert found["validation"].keys() >= {"reward", "acceptance_rate", "quality_drop_error", "objective"}
    assert {"versions", "git_commit", "argv", "world_size", "num_prompts", "acceptance_coef"} <= set(found)


def test_the_final_head_says_which_step_it_is_of(done, tmp_path):
    """Catches the best head, loaded at the end, under the number of the last step."""
    trainer, _ = done
    trainer.save_model(str(tmp_path))
    best = runs.Path(trainer.state.best_model_checkpoint)
    assert json.loads((tmp_path / "provenance.json").read_text())["step"] == int(best.name.removeprefix("checkpoint-"))
    assert (tmp_path / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()


def test_resume_names_the_damaged_and_goes_on(done, tmp_path, caplog):
    """Catches a resume from an interrupted save, or one that starts anew without a word."""
    trainer = runs.trainer(tmp_path, max_steps=6)
    trainer.train()
    (tmp_path / "checkpoint-6" / "complete.json").unlink()
    (tmp_path / "checkpoint-4" / "optimizer.pt").write_bytes(b"")
    expected = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    again, steps = runs.trainer(tmp_path, max_steps=6), []
    again.add_callback(runs.Watch(lambda: steps.append(again.state.global_step)))
    with caplog.at_level(logging.WARNING):
        again.train(resume_from_checkpoint=True)
    assert "checkpoint-6 is damaged (its save was interrupted" in caplog.text
    assert "checkpoint-4 is damaged (optimizer.pt was changed" in caplog.text
    assert steps == [3, 4, 5, 6]
    assert all(torch.equal(value, expected[name]) for name, value in again.model.state_dict().items())
    assert damage(tmp_path / "checkpoint-6") is None


def test_who_resumes_may_tolerate_more(tmp_path):
    """Catches bounds of the interrupted run that outlive it, unseen beside the new ones in log and provenance, and a
    running mean that they take along when they go."""
    first = runs.trainer(tmp_path, acceptance_coef=None, max_quality_drop=0.01, max_steps=4)
    first.train()
    again = runs.trainer(tmp_path, acceptance_coef=None, max_quality_drop=0.2, acceptance_coef_max=0.25, max_steps=6)
    again.train(resume_from_checkpoint=True)
    assert again.constraint in again.callback_handler.callbacks
    assert (again.constraint.max_drop, again.constraint.high) == (0.2, 0.25)
    assert again.constraint.batches[:2] == first.constraint.batches
    assert len(again.constraint.batches) == 3
    fixed = runs.trainer(tmp_path, acceptance_coef=0.7, max_steps=8)
    fixed.train(resume_from_checkpoint=True)
    assert fixed.constraint.worth == 0.7


def test_resume_from_a_named_damaged_one_is_refused(tmp_path):
    trainer = runs.trainer(tmp_path, max_steps=2)
    trainer.train()
    (tmp_path / "checkpoint-2" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-2 is damaged: model.safetensors is missing. Pass True"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    with pytest.raises(ValueError, match=r"no checkpoint in .* is complete: checkpoint-2 were damaged"):
        trainer.train(resume_from_checkpoint=True)


def test_an_interrupted_first_save_is_no_obstacle(tmp_path, caplog):
    """Catches a job script with resume always on that is stuck once it was killed inside its first save."""
    trainer = runs.trainer(tmp_path, max_steps=2)
    trainer.train()
    (tmp_path / "checkpoint-2" / "complete.json").unlink()
    with caplog.at_level(logging.WARNING):
        trainer.train(resume_from_checkpoint=True)
    assert "checkpoint-2 is damaged (its save was interrupted" in caplog.text
    assert damage(tmp_path / "checkpoint-2") is None


def test_resume_without_checkpoints_starts(tmp_path):
    """Catches a job script with resume always on that fails at its first start."""
    trainer = runs.trainer(tmp_path, max_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2


def test_old_checkpoints_go_only_after_the_new_one_is_sealed(tmp_path, monkeypatch):
    """Catches rotation before the seal: a kill in between would leave nothing to go on from."""
    from hf_diversed.training import checkpoints as module

    complete, inner = [], module.seal

    def look(folder):
        complete.append(sum(damage(path) is None for path in tmp_path.glob("checkpoint-*")))
        inner(folder)

    monkeypatch.setattr(module, "seal", look)
    runs.trainer(tmp_path, max_steps=6, save_total_limit=1).train()
    assert complete == [0, 1, 1]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]
