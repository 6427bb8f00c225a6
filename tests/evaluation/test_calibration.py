"""Calibration: what is measured, when it ends, and what becomes of an interrupted one."""

from pathlib import Path

import numpy as np
import pytest

from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.evaluation.calibration import DIALS, calibrate, merge_certified, rewards
from hf_diversed.provenance import module_digest
from tests.evaluation.fakes import Interrupted, LetterTask, examples, tiny_pair
from tests.tiny import ragged_batch, tiny_head


SETTINGS = EvaluationSettings(batch_size=10, samples_per_prompt=2, num_assistant_tokens=3)
DROPS, STRICT_TO_PERMISSIVE = (0.001, 0.7), (0.9, 0.5, 0.1)  # twenty prompts tell a point from none never, 70 always


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


def run(pair, folder: Path, task=None, drops=DROPS, dials=STRICT_TO_PERMISSIVE, head=None, **options):
    task, head = task or LetterTask(), head or tiny_head()
    return calibrate(pair, task, examples(20), head, SETTINGS, drops, folder, dials=dials, **options)


def test_an_interrupted_calibration_goes_on(pair, tmp_path):
    """Catches calls that are lost or made twice, and another table than that of one go."""
    whole = LetterTask()
    expected = run(pair, tmp_path / "whole", whole)
    with pytest.raises(Interrupted):
        run(pair, tmp_path / "parts", LetterTask(calls_left=7))
    rest = LetterTask()
    assert run(pair, tmp_path / "parts", rest) == expected
    assert rest.num_calls == whole.num_calls - 7 == 2 * 2 * 4 - 7


def test_says_what_it_measured(pair, tmp_path):
    """Catches figures of another dial, an entry for a drop that failed, and a table that its head does not take."""
    head = tiny_head()
    (entry,), tested = run(pair, tmp_path, head=head)
    records = evaluate(
        pair,
        LetterTask(),
        examples(20),
        ["ar", *(f"diversed@{dial}" for dial in STRICT_TO_PERMISSIVE)],
        SETTINGS,
        head=head,
    )
    assert [dial.quality for dial in tested] == list(STRICT_TO_PERMISSIVE)
    for dial, record in zip(tested, records[1:]):
        assert dial.drop == pytest.approx(record["quality_drop"])
        assert dial.acceptance_rate == record["acceptance_rate"]
    assert [list(dial.p_values) for dial in tested] == [list(DROPS), [0.7], [0.7]]
    assert entry == {
        "max_drop": 0.7,
        "confidence": 0.95,
        "quality": 0.1,
        "drop": tested[-1].drop,
        "acceptance_rate": tested[-1].acceptance_rate,
        "task": "letters",
        "metric": "share of lower case",
        "num_prompts": 20,
        "samples_per_prompt": 2,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "num_assistant_tokens": 3,
        "head": module_digest(head),
    }
    head.config.certified_drops = [entry]
    call = {"do_sample": True, "top_k": 0, "max_new_tokens": 4, "return_dict_in_generate": True}
    out = pair.target.generate(
        **ragged_batch(), **call, assistant_model=pair.draft, diversed_head=head, diversed_max_drop=0.7
    )
    assert out.stats.quality == 0.1


def test_ends_with_the_last_open_drop(pair, tmp_path):
    """Catches dials that are decoded though nothing depends on them."""
    task = LetterTask()
    certified, tested = run(pair, tmp_path, task, drops=[0.001])
    assert certified == []
    assert len(tested) == 1
    assert task.num_calls == 2 * 2 * 2


def test_rewards_are_filed_by_prompt_and_sample(pair, tmp_path):
    """Catches rewards in the order of batches, which go by length: they would be paired with other prompts'."""
    (record,) = evaluate(pair, LetterTask(), examples(20), ["ar"], SETTINGS, output=tmp_path)
    results = read_results(tmp_path)
    found = rewards(results, "ar")
    assert found.shape == (20, 2)
    assert found.mean() == pytest.approx(record["quality"])
    for (_, _, sample), entry in results.entries.items():
        np.testing.assert_array_equal(found[entry["rows"]["prompt"], sample], entry["rows"]["score"])
    assert np.isnan(rewards(results, "diversed")).all()


def test_a_new_calibration_takes_the_place_of_its_own_kind():
    """Catches a table that grows by two of a kind, and one that outlives its head's weights."""
    names = ("max_drop", "temperature", "top_k", "top_p", "num_assistant_tokens", "head")
    same, colder, other = (
        dict(zip(names, row))
        for row in ((0.01, 1.0, 0, 1.0, 3, "mine"), (0.01, 0.5, 0, 1.0, 3, "mine"), (0.01, 0.5, 0, 1.0, 3, "other"))
    )
    new = {**same, "max_drop": 0.02}
    assert merge_certified([same, colder, other], [new], SETTINGS, "mine") == [colder, new]
    assert merge_certified([same], [], SETTINGS, "mine") == []
    assert merge_certified(None, [new], SETTINGS, "mine") == [new]


def test_refusals(pair, tmp_path):
    with pytest.raises(ValueError, match="`dials` must fall from strict to permissive"):
        run(pair, tmp_path, dials=(0.1, 0.9))
    with pytest.raises(ValueError, match="`max_drop` must lie between 0 and 1, got 0"):
        run(pair, tmp_path, drops=(0.0,))
    settings = EvaluationSettings(num_assistant_tokens=None)
    with pytest.raises(ValueError, match="settings with `num_assistant_tokens`"):
        calibrate(pair, LetterTask(), examples(2), tiny_head(), settings, DROPS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_default_dials_are_exact():
    """Catches 0.1 + 0.05 + ... in labels, which would not be found again."""
    assert DIALS[0] == 0.95
    assert DIALS[-1] == 0.05
    assert [f"{dial:g}" for dial in DIALS] == [str(dial) for dial in DIALS]
