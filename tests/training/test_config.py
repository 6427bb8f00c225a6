"""Settings of a run: valid defaults, and errors before anything is loaded."""

import pytest

from hf_diversed.training import DiversedConfig
from tests.training.runs import config


def test_defaults(tmp_path):
    """Catches a default that the checks refuse, and one of the other kind of head or in place of a given setting."""
    found = DiversedConfig(output_dir=str(tmp_path), report_to="none")
    assert (found.acceptance_coef, found.token_features) == (None, False)
    for token_features, given, expected in (
        (False, {}, (0.2, "batch")),
        (True, {}, (0.5, "prompt")),
        (True, {"num_generations": 1}, (0.5, "batch")),
        (True, {"clip_range": 0.1, "baseline": "batch"}, (0.1, "batch")),
    ):
        used = config(tmp_path, **given).for_head(token_features)
        assert (used.clip_range, used.baseline) == expected


EVALUATED = {"eval_strategy": "steps"}
BEST = EVALUATED | {"load_best_model_at_end": True}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "greedy rollouts give no policy gradient"),
        ({"acceptance_coef": float("nan")}, "`acceptance_coef` must lie"),
        ({"initial_lenience": 0.0}, r"`initial_lenience` must lie in \[0.0001, 1\], got 0.0"),
        ({"baseline": "prompt", "num_generations": 1}, "needs num_generations of at least 2, got 1"),
        ({"per_device_train_batch_size": 1, "num_generations": 1}, "must be at least 2 on one device, got 1"),
        ({"push_to_hub": True}, "publish the saved head with `hf-diversed push`"),
        ({"num_generations": 3}, "per_device_train_batch_size must be a multiple of num_generations=3"),
        ({"max_steps": 5}, "max_steps must be a positive multiple of num_iterations=2, got 5"),
        ({"save_steps": 0.5}, "save_steps must be a positive multiple"),
        (EVALUATED | {"eval_steps": 3}, "eval_steps must be a positive multiple"),
        (BEST | {"save_steps": 4}, "eval_steps must equal save_steps=4 .*, got 2"),
    ],
)
def test_refused(tmp_path, settings: dict, message: str):
    """Catches a setting that would fail, or select another head, hours later."""
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)
