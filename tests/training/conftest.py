"""A run that several tests look at."""

import copy

import pytest

from tests.training import runs


@pytest.fixture(scope="session")
def done(tmp_path_factory):
    """A constrained run with evaluation that came to its end."""
    models = runs.pair()
    before = [copy.deepcopy(model.state_dict()) for model in models]
    trainer = runs.trainer(
        tmp_path_factory.mktemp("run"),
        [runs.letters, runs.zero],
        models=models,
        eval_dataset=runs.rows()[:3],
        acceptance_coef=None,
        reward_weights=[1.0, 2.0],
        eval_strategy="steps",
        load_best_model_at_end=True,
        learning_rate=0.3,
        max_steps=6,
    )
    trainer.train()
    return trainer, before
