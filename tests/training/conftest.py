"""Runs that several tests use."""

import copy

import pytest

from tests.training import runs


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A finished run with a constraint and evaluations."""
    models = runs.pair()
    before = [copy.deepcopy(model.state_dict()) for model in models]
    evaluated = {"eval_dataset": runs.rows()[:3], "eval_strategy": "steps", "load_best_model_at_end": True}
    settings = {"acceptance_coef": None, "reward_weights": [1.0, 2.0], "learning_rate": 0.3, "max_steps": 6}
    rewards = [runs.letters, runs.zero]
    return runs.trained(tmp_path_factory.mktemp("run"), rewards, models=models, **evaluated, **settings), before
