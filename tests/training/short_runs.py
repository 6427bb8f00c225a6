"""Runs of a few steps, for tests of errors."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.training import runs


STEPS = 6
EVALUATED = {"eval_strategy": "steps", "load_best_model_at_end": True, "metric_for_best_model": "reward"}


def trainer(folder: Path, reward=runs.letters, **settings):
    held_out = {"eval_dataset": runs.rows()[:3]} | EVALUATED if settings.pop("evaluated", False) else {}
    return runs.trainer(folder, reward, **({"max_steps": STEPS, "learning_rate": 0.3} | held_out | settings))


def check_resumed(folder: Path, step: int, expected: Path, **settings):
    """Resume a run at `step`; it must end with the weights in `expected`. Return its trainer."""
    resumed = trainer(folder, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.rescue.first_step == step
    assert same(resumed.model, expected)
    return resumed


def same(one: torch.nn.Module, folder: Path) -> bool:
    """Whether a head has the weights in a folder, bit for bit."""
    stored = load_file(folder / "model.safetensors")
    return all(torch.equal(value, stored[name]) for name, value in one.state_dict().items())
