"""The files that the trainer saves, and from which it continues."""

import json

from safetensors.torch import load_file

from hf_diversed.head import DiversedHead
from tests.training import runs


def test_checkpoint_holds_the_head_alone(done):
    """Catches base models or pickled arguments in a checkpoint, and one without provenance."""
    trainer, _ = done
    checkpoint = f"{trainer.args.output_dir}/checkpoint-6"
    assert set(load_file(f"{checkpoint}/model.safetensors")) == set(trainer.model.state_dict())
    assert trainer.model.num_parameters() == 9
    head = DiversedHead.from_pretrained(checkpoint)
    assert head.config.num_assistant_tokens == 3
    assert head.config.training_temperature == 1.0
    listed = {path.name for path in runs.Path(checkpoint).iterdir()}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json", "provenance.json"} <= set(listed)
    assert "training_args.bin" not in listed
    assert sum((runs.Path(checkpoint) / name).stat().st_size for name in listed) < 100_000


def test_provenance_of_a_head(done):
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
    assert {"versions", "git_commit", "world_size", "num_prompts", "acceptance_coef"} <= set(found)


def test_the_final_head_records_its_step(done, tmp_path):
    """Catches the best head, loaded at the end, with the number of the last step."""
    trainer, _ = done
    trainer.save_model(str(tmp_path))
    best = runs.Path(trainer.state.best_model_checkpoint)
    assert json.loads((tmp_path / "provenance.json").read_text())["step"] == int(best.name.removeprefix("checkpoint-"))
    assert (tmp_path / "model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()
