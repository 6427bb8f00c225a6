"""Settings of a run: valid defaults, and errors before anything is loaded."""

import pytest
from transformers import HfArgumentParser

from hf_diversed.training import DiversedConfig
from tests.training.runs import config


def test_defaults_are_valid(tmp_path):
    """Catches a default that its own checks refuse, and a default head other than the paper's mixture head."""
    found = DiversedConfig(output_dir=str(tmp_path), report_to="none")
    assert found.acceptance_coef is None
    assert found.token_features is False
    assert found.max_steps % found.num_iterations == found.save_steps % found.num_iterations == 0
    assert all(item.metadata["help"] for item in DiversedConfig.own_fields())


REFUSED = [
    ("temperature", {"temperature": 0.0}, "greedy rollouts give no policy gradient"),
    ("top_p", {"top_p": 1.5}, r"`top_p` must lie in \[0, 1\], got 1.5"),
    ("num_generations", {"num_generations": 0}, "`num_generations` must lie"),
    ("max_completion_length", {"max_completion_length": 1}, "`max_completion_length` must lie"),
    ("nan", {"acceptance_coef": float("nan")}, "`acceptance_coef` must lie"),
    ("initial_lenience", {"initial_lenience": 0.0}, r"`initial_lenience` must lie in \[0.0001, 1\], got 0.0"),
    ("baseline", {"baseline": "mean"}, "baseline must be batch, prompt or None, got 'mean'"),
    ("lonely baseline", {"baseline": "prompt", "num_generations": 1}, "needs num_generations of at least 2, got 1"),
    ("accumulation", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1, got 2"),
    ("torn group", {"num_generations": 3}, "per_device_train_batch_size must be a multiple of num_generations=3"),
    ("end inside", {"max_steps": 5}, "max_steps must be a positive multiple of num_iterations=2, got 5"),
    ("no end", {"max_steps": -1}, "max_steps must be a positive multiple"),
    ("save inside", {"save_steps": 3}, "save_steps must be a positive multiple"),
    ("save by ratio", {"save_steps": 0.5}, "save_steps must be a positive multiple"),
    ("evaluation inside", {"eval_strategy": "steps", "eval_steps": 3}, "eval_steps must be a positive multiple"),
    (
        "best of unsaved",
        {"eval_strategy": "steps", "load_best_model_at_end": True, "eval_steps": 2, "save_steps": 4},
        "eval_steps must equal save_steps=4 .*, got 2",
    ),
]


@pytest.mark.parametrize(("settings", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused(tmp_path, settings: dict, message: str):
    """Catches a setting that would fail, or select another head, hours later."""
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


def test_from_the_command_line(tmp_path):
    """Catches a field whose annotation the parser cannot read."""
    argv = ["--output_dir", str(tmp_path), "--reward_weights", "1", "0.5", "--acceptance_coef", "0.2"]
    (found,) = HfArgumentParser(DiversedConfig).parse_args_into_dataclasses([*argv, "--report_to", "none"])
    assert (found.reward_weights, found.acceptance_coef) == ([1.0, 0.5], 0.2)


@pytest.mark.parametrize(
    ("token_features", "given", "expected"),
    [
        (False, {}, (0.2, "batch")),
        (True, {}, (0.5, "prompt")),
        (True, {"num_generations": 1}, (0.5, "batch")),
        (True, {"clip_range": 0.1, "baseline": "batch"}, (0.1, "batch")),
        (False, {"clip_range": 0.3, "baseline": "prompt"}, (0.3, "prompt")),
    ],
)
def test_defaults_depend_on_the_kind_of_head(tmp_path, token_features: bool, given: dict, expected: tuple):
    """Catches a default that overrides a given setting, and one that changes the caller's settings."""
    settings = config(tmp_path, **given)
    found = settings.for_head(token_features)
    assert (found.clip_range, found.baseline) == expected
    assert (settings.clip_range, settings.baseline) == (given.get("clip_range"), given.get("baseline"))
