"""Calibration: what is measured, which strictness is chosen, and how an interrupted one continues."""

from pathlib import Path

import numpy as np
import pytest

from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.evaluation.calibrate import calibrate, rewards
from tests.evaluation.fakes import Interrupted, LetterTask, examples
from tests.tiny import calibration, tiny_head


SETTINGS = EvaluationSettings(batch_size=10, samples_per_prompt=2, num_assistant_tokens=3)
# Twenty prompts always pass a limit of 70 points.
LARGE, STRICT_TO_PERMISSIVE = 0.7, (0.9, 0.5, 0.1)


@pytest.fixture(autouse=True)
def few_strictnesses(monkeypatch):
    monkeypatch.setattr("hf_diversed.evaluation.calibrate.STRICTNESSES", STRICT_TO_PERMISSIVE)


def run(pair, folder: Path, task=None, head=None):
    task, head = task or LetterTask(), head or tiny_head()
    return calibrate(pair, task, examples(20), head, SETTINGS, folder, max_quality_drop=LARGE)


def test_records_what_was_measured(pair, tmp_path):
    """Catches figures of another strictness, a default that calls do not use, and settings that are not those."""
    head = tiny_head()
    tested = run(pair, tmp_path, head=head)
    methods = ["target", *(f"diversed@{value}" for value in STRICT_TO_PERMISSIVE)]
    records = evaluate(pair, LetterTask(), examples(20), methods, SETTINGS, head=head)
    assert [item.strictness for item in tested] == list(STRICT_TO_PERMISSIVE)
    (default,) = evaluate(pair, LetterTask(), examples(20), ["diversed"], SETTINGS, head=head)
    assert default["block_efficiency"] == records[-1]["block_efficiency"]  # of strictness 0.1
    for item, record in zip(tested, records[1:]):
        assert item.drop == pytest.approx(record["quality_drop"])
        assert item.acceptance_rate == record["acceptance_rate"]
        assert item.p_value <= 0.05
    about = {"task": "letters", "metric": "share of lower case", "num_prompts": 20, "num_assistant_tokens": 3}
    about |= {"max_new_tokens": 6, "drop": tested[-1].drop, "acceptance_rate": tested[-1].acceptance_rate}
    assert head.config.calibration == calibration(max_quality_drop=LARGE, strictness=0.1, **about)


def test_the_last_strictness_that_passes_is_chosen(pair, tmp_path, monkeypatch):
    """Catches the strictness that failed, one that is decoded after it, and calls of an interrupted calibration that
    are decoded again."""
    monkeypatch.setattr("hf_diversed.evaluation.calibrate.STRICTNESSES", (0.9, 0.7, 0.5, 0.1))
    head, task = tiny_head(), LetterTask()
    with pytest.raises(Interrupted):
        run(pair, tmp_path, LetterTask(calls_left=7))
    results = iter([0.01, 0.05, 0.06, 0.0])
    monkeypatch.setattr("hf_diversed.evaluation.calibrate.p_value", lambda *_: next(results))
    tested = run(pair, tmp_path, task, head=head)
    assert [item.p_value for item in tested] == [0.01, 0.05, 0.06]
    assert task.num_calls == 2 * 2 * 4 - 7  # batches, samples, and methods with the target
    assert head.config.strictness == head.config.calibration["strictness"] == 0.7
    assert head.config.calibration["drop"] == tested[1].drop


def test_rewards_are_sorted_by_prompt_and_sample(pair, tmp_path):
    """Catches rewards in the order of batches, which are sorted by length: they would be paired with other prompts."""
    (record,) = evaluate(pair, LetterTask(), examples(20), ["target"], SETTINGS, output=tmp_path)
    results = read_results(tmp_path)
    found = rewards(results, "target")
    assert found.shape == (20, 2)
    assert found.mean() == pytest.approx(record["quality"])
    for (_, _, sample), entry in results.entries.items():
        np.testing.assert_array_equal(found[entry["rows"]["prompt"], sample], entry["rows"]["score"])
    assert np.isnan(rewards(results, "diversed")).all()
