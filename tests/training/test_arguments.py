"""Settings of a run: valid defaults, and errors before anything is loaded."""

import json

import pytest
from transformers import HfArgumentParser

from hf_diversed.training import DiversedConfig
from tests.training.runs import config


def test_defaults_are_valid(tmp_path):
    """Catches a default that its own checks refuse."""
    found = DiversedConfig(output_dir=str(tmp_path), report_to="none")
    assert found.constrained
    assert found.max_steps % found.num_iterations == found.save_steps % found.num_iterations == 0


BEST = {"eval_strategy": "steps", "load_best_model_at_end": True}
REFUSED = [
    ("temperature", {"temperature": 0.0}, "greedy rollouts give no policy gradient"),
    ("top_p", {"top_p": 1.5}, r"`top_p` must lie in \[0, 1\], got 1.5"),
    ("top_k", {"top_k": -1}, "`top_k` must lie"),
    ("num_generations", {"num_generations": 0}, "`num_generations` must lie"),
    ("num_iterations", {"num_iterations": 0}, "`num_iterations` must lie"),
    ("num_assistant_tokens", {"num_assistant_tokens": 0}, "`num_assistant_tokens` must lie"),
    ("max_completion_length", {"max_completion_length": 1}, "`max_completion_length` must lie"),
    ("generation_batch_size", {"generation_batch_size": 0}, "`generation_batch_size` must lie"),
    ("reference_generations", {"reference_generations": 0}, "`reference_generations` must lie"),
    ("acceptance_coef", {"acceptance_coef": -0.1}, "`acceptance_coef` must lie"),
    ("acceptance_coef_init", {"acceptance_coef_init": 2.0}, "acceptance_coef_init must lie between"),
    ("dual_window", {"dual_window": 1999}, r"`dual_window` must lie in \[2000, inf\], got 1999"),
    ("dual_learning_rate", {"dual_learning_rate": 1.5}, "`dual_learning_rate` must lie"),
    ("max_quality_drop", {"max_quality_drop": -0.01}, "`max_quality_drop` must lie"),
    ("clip_range", {"clip_range": 1.1}, "`clip_range` must lie"),
    ("initial_lenience", {"initial_lenience": 0.0}, r"`initial_lenience` must lie in \[0.0001, 1\], got 0.0"),
    ("baseline", {"baseline": "mean"}, "baseline must be one of batch, prompt, or None, got 'mean'"),
    ("lonely baseline", {"baseline": "prompt", "num_generations": 1}, "needs num_generations of at least 2, got 1"),
    ("initial_weight", {"initial_weight": 1.0}, "`initial_weight` must lie"),
    ("nan", {"acceptance_coef": float("nan")}, "`acceptance_coef` must lie"),
    (
        "metric",
        {"metric_for_best_model": "accuracy"},
        "metric_for_best_model must be one of objective, reward, acceptance_rate, block_efficiency, got 'accuracy'",
    ),
    ("lenience", {"initial_lenience": 0.1}, "not used with token_features=False: initial_lenience"),
    (
        "weight",
        {"initial_weight": 0.6, "token_features": True},
        "not used with token_features=True: initial_weight",
    ),
    (
        "no constraint",
        {"max_quality_drop": 0.02, "dual_window": 4096},
        r"not used with acceptance_coef=0\.3: max_quality_drop, dual_window",
    ),
    ("accumulation", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1, got 2"),
    ("torn group", {"num_generations": 3}, "per_device_train_batch_size must be a multiple of num_generations=3"),
    ("end inside", {"max_steps": 5}, "max_steps must be a positive multiple of num_iterations=2, got 5"),
    ("no end", {"max_steps": -1}, "max_steps must be a positive multiple"),
    ("save inside", {"save_steps": 3}, "save_steps must be a positive multiple"),
    ("save by ratio", {"save_steps": 0.5}, "save_steps must be a positive multiple"),
    ("evaluation inside", {"eval_strategy": "steps", "eval_steps": 3}, "eval_steps must be a positive multiple"),
    ("best of unsaved", BEST | {"eval_steps": 2, "save_steps": 4}, "eval_steps must equal save_steps=4 .*, got 2"),
]


@pytest.mark.parametrize(("settings", "message"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_refused(tmp_path, settings: dict, message: str):
    """Catches a setting that would fail, or have no effect, hours later."""
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


def test_constrained_unless_a_coefficient_is_given(tmp_path):
    """Catches a coefficient of 0, which is valid, treated as unset."""
    assert config(tmp_path, acceptance_coef=None).constrained
    assert not config(tmp_path, acceptance_coef=0.0).constrained


def test_from_the_command_line(tmp_path):
    """Catches a field whose annotation the parser cannot read."""
    argv = ["--output_dir", str(tmp_path), "--model_init_kwargs", json.dumps({"dtype": "float32"})]
    argv += ["--reward_weights", "1", "0.5", "--acceptance_coef", "0.2", "--report_to", "none"]
    (found,) = HfArgumentParser(DiversedConfig).parse_args_into_dataclasses(argv)
    assert found.model_init_kwargs == {"dtype": "float32"}
    assert found.reward_weights == [1.0, 0.5]
    assert found.acceptance_coef == 0.2


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
    """Catches a default that overrides a given setting, and changed training of existing kinds of heads."""
    found = config(tmp_path, **given)
    found.set_head_defaults(token_features)
    assert (found.clip_range, found.baseline) == expected
