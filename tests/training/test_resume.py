"""A run that is interrupted and resumed from its last checkpoint ends exactly where an undisturbed run ends."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training import runs


SETTINGS = {"max_steps": 6, "learning_rate": 0.3, "acceptance_coef": None}
EVALUATED = {"eval_strategy": "steps", "load_best_model_at_end": True, "metric_for_best_model": "reward"}


def trainer(folder: Path, reward=runs.letters, **settings):
    return runs.trainer(folder, reward, eval_dataset=runs.rows()[:3], **(SETTINGS | EVALUATED | settings))


def test_a_resumed_run_ends_as_the_unbroken_one(tmp_path):
    """Catches rollouts, references or a learning rate that depend on where the process started, a lost coefficient or
    mean, references that are measured again, and an evaluation that is left out. Equal bit for bit."""
    unbroken = trainer(tmp_path / "unbroken")
    unbroken.train()
    folder = tmp_path / "resumed"

    def interrupted(completions, **columns):
        if (folder / "checkpoint-4").is_dir():
            raise KeyboardInterrupt
        return runs.letters(completions)

    with pytest.raises(KeyboardInterrupt):
        trainer(folder, interrupted).train()
    assert not (folder / "checkpoint-6").exists()
    resumed = trainer(folder)
    resumed.train(resume_from_checkpoint=True)
    one, two = (load_file(Path(run.args.output_dir) / "checkpoint-6/model.safetensors") for run in (unbroken, resumed))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert resumed.constraint == unbroken.constraint
    assert len(resumed.constraint.batches) == 3
    assert resumed.references.rewards == unbroken.references.rewards
    assert resumed.state.best_metric == unbroken.state.best_metric
    evaluated = [
        [line["eval_objective"] for line in run.state.log_history if "eval_reward" in line]
        for run in (unbroken, resumed)
    ]
    assert evaluated[0] == evaluated[1]
    assert len(evaluated[1]) == 3
    head, other = unbroken.model.state_dict(), resumed.model.state_dict()  # the best ones
    assert all(torch.equal(value, other[name]) for name, value in head.items())
