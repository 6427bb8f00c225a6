"""Several evaluations in one result: continued, and shared by processes."""

import json
from dataclasses import replace

import pytest

from hf_diversed import DiversedHead, DiversedHeadConfig
from hf_diversed.evaluation import EvaluationSettings, evaluate, sweep
from tests.evaluation.fakes import Interrupted, LetterTask, examples
from tests.evaluation.test_evaluate import timeless


METHODS = ["target", "static:0.5"]
SETTINGS = [EvaluationSettings(batch_size=3, num_assistant_tokens=gamma) for gamma in (2, 3)]


def parts(folder, **changes) -> list:
    return [(METHODS, replace(item, **changes), folder / str(item.num_assistant_tokens)) for item in SETTINGS]


def test_a_sweep_is_its_evaluations(pair, tmp_path):
    """Catches settings that affect the next part, and an interrupted sweep that starts again."""
    output = tmp_path / "sweep.json"
    with pytest.raises(Interrupted):
        sweep(pair, LetterTask(calls_left=5), examples(5), parts(tmp_path), output=output)
    assert not output.exists()
    task = LetterTask()
    records = sweep(pair, task, examples(5), parts(tmp_path), output=output)
    assert task.num_calls == 3
    alone = [record for item in SETTINGS for record in evaluate(pair, LetterTask(), examples(5), METHODS, item)]
    assert timeless(records) == timeless(alone)
    written = json.loads(output.read_text())
    assert written["records"] == records
    gammas = [header["settings"]["num_assistant_tokens"] for header in written["provenance"]["evaluations"]]
    assert gammas == [2, 3]


def test_the_last_process_reports(pair, tmp_path):
    """Catches a sweep without a report: the process that ends last did not make the last call of every part."""
    shares = [parts(tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    output = tmp_path / "sweep.json"
    (_, early, early_folder), (_, late, late_folder) = shares[0]
    evaluate(pair, LetterTask(), examples(5), METHODS, late, output=late_folder)

    class Overtaken(LetterTask):
        def score_batch(self, completions, records):
            if self.num_calls == len(METHODS):  # this process has left the early part, which the other one ends now
                evaluate(pair, LetterTask(), examples(5), METHODS, early, output=early_folder)
            return super().score_batch(completions, records)

    records = sweep(pair, Overtaken(), examples(5), shares[1], output=output)
    assert [record["num_assistant_tokens"] for record in records] == [2, 2, 3, 3]
    assert json.loads(output.read_text())["records"] == records


def test_nothing_is_reported_too_early(pair, tmp_path):
    """Catches a file with the results of the first process only."""
    output = tmp_path / "sweep.json"
    assert sweep(pair, LetterTask(), examples(5), parts(tmp_path, world_size=2), output=output) == []
    assert not output.exists()


def test_all_parts_are_checked_first(pair, tmp_path):
    """Catches a later part whose folder holds other settings, which is found after the first part has run."""
    evaluate(pair, LetterTask(), examples(5), METHODS, replace(SETTINGS[1], seed=1), output=tmp_path / "3")
    task = LetterTask()
    with pytest.raises(ValueError, match="holds results of other settings"):
        sweep(pair, task, examples(5), parts(tmp_path))
    assert task.num_calls == 0


def test_overwrite(pair, tmp_path):
    """Catches results that are removed although a check fails, results in subfolders that are removed, and calls that
    are reused."""
    sweep(pair, LetterTask(), examples(5), parts(tmp_path))
    earlier = {path: path.read_text() for path in tmp_path.rglob("*.jsonl")}
    assert len(earlier) == 2
    other = DiversedHead(DiversedHeadConfig(16, 32)).eval()
    for mistake, words in (
        ((["static:2"], SETTINGS[0], None), "must lie in"),
        ((METHODS * 2, SETTINGS[0], None), "more than once"),
        ((["diversed"], SETTINGS[0], None), "hidden size 16"),
        (parts(tmp_path, world_size=2)[0], "`overwrite` must be False with several processes, got world_size = 2"),
    ):
        with pytest.raises(ValueError, match=words):
            sweep(pair, LetterTask(), examples(5), [*parts(tmp_path), mistake], head=other, overwrite=True)
        assert {path: path.read_text() for path in earlier} == earlier
    evaluate(pair, LetterTask(), examples(5), METHODS, SETTINGS[0], output=tmp_path, overwrite=True)
    assert {path: path.read_text() for path in earlier} == earlier
    task = LetterTask()
    sweep(pair, task, examples(5), parts(tmp_path), overwrite=True)
    assert task.num_calls == 2 * 2 * len(METHODS)
