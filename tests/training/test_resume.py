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


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    done = trainer(tmp_path_factory.mktemp("unbroken"))
    done.train()
    return done


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run that is interrupted between its second and third rollouts, and resumed."""
    folder, calls = tmp_path_factory.mktemp("resumed"), []

    def interrupted(completions, **columns):
        calls.append(len(completions))
        if (folder / "checkpoint-4").is_dir():
            raise KeyboardInterrupt
        return runs.letters(completions)

    with pytest.raises(KeyboardInterrupt):
        trainer(folder, interrupted).train()
    assert not (folder / "checkpoint-6").exists()
    again = trainer(folder)
    again.train(resume_from_checkpoint=True)
    return again


def test_a_resumed_run_ends_as_the_unbroken_one(unbroken, resumed):
    """Catches rollouts, references or a learning rate that depend on where the process started, a lost coefficient or
    mean, references that are measured again, and an evaluation that is left out. Equal bit for bit."""
    for step in (2, 4, 6):
        one, two = (
            load_file(Path(run.args.output_dir) / f"checkpoint-{step}/model.safetensors")
            for run in (unbroken, resumed)
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert resumed.constraint == unbroken.constraint
    assert len(resumed.constraint.batches) == 3
    assert resumed.references.rewards == unbroken.references.rewards
    assert resumed.state.best_global_step == unbroken.state.best_global_step
    assert resumed.state.best_metric == unbroken.state.best_metric
    evaluated = [[line for line in run.state.log_history if "eval_reward" in line] for run in (unbroken, resumed)]
    assert [line["eval_objective"] for line in evaluated[0]] == [line["eval_objective"] for line in evaluated[1]]
    assert len(evaluated[1]) == 3
    head, other = unbroken.model.state_dict(), resumed.model.state_dict()  # the best ones
    assert all(torch.equal(value, other[name]) for name, value in head.items())


def test_the_limit_can_change_on_resume(tmp_path):
    """Catches the limit of the interrupted run in place of the new one, and a running mean that is lost."""
    first = runs.trained(tmp_path, acceptance_coef=None, max_quality_drop=0.01, max_steps=4)
    again = runs.trainer(tmp_path, acceptance_coef=None, max_quality_drop=0.2, max_steps=6)
    again.train(resume_from_checkpoint=True)
    assert again.constraint.max_drop == 0.2
    assert again.constraint.batches[:2] == first.constraint.batches
    assert len(again.constraint.batches) == 3
    fixed = runs.trainer(tmp_path, acceptance_coef=0.7, max_steps=8)
    fixed.train(resume_from_checkpoint=True)
    assert fixed.acceptance_coef == 0.7
