"""How tokens are drawn: the arguments of `generate`, and refused settings."""

import dataclasses

import pytest

from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.harness.sampling import Sampling


def test_generate_receives_every_sampling_argument():
    """Catches a setting of the model's config that makes training and evaluation sample differently."""
    fixed = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    assert Sampling().generate_kwargs() == {"do_sample": True, "temperature": 1.0, "max_new_tokens": 128, **fixed}
    greedy = {"do_sample": False, "max_new_tokens": 9, "repetition_penalty": 1.0}
    assert Sampling(temperature=0, max_new_tokens=9).generate_kwargs() == greedy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"temperature": -0.1}, "`temperature` must be >= 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 1.5}, r"`top_p` must lie in \(0, 1\]"),
        ({"top_p": 0.0}, r"`top_p` must lie in \(0, 1\]"),
        ({"num_assistant_tokens": 0}, "num_assistant_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
@pytest.mark.parametrize("kind", [Sampling, EvaluationSettings])
def test_values_out_of_range(kind, changes, words):
    with pytest.raises(ValueError, match=words):
        kind(**changes)


def test_an_evaluation_samples_with_its_settings():
    """Catches a field of `Sampling` that an evaluation ignores, and a task's limits that override given ones."""
    asked = {"temperature": 0.5, "top_k": 3, "top_p": 0.9, "num_assistant_tokens": 2, "batch_size": 7}
    expected = Sampling(**asked, max_new_tokens=11, stop_strings=("x",))
    assert {item.name for item in dataclasses.fields(Sampling)} == {*asked, "max_new_tokens", "stop_strings"}
    assert EvaluationSettings(**asked).sampling(["x"], 11) == expected
    assert EvaluationSettings(**asked, max_new_tokens=11).sampling(["x"], 99) == expected
    with pytest.raises(ValueError, match="`stop_strings` must be left to the task"):
        EvaluationSettings(stop_strings=("x",))
