"""Records from files, from the Hub and from the corpus."""

import json
import sys
from pathlib import Path

import datasets
import pytest

from hf_diversed.tasks import TASKS, get_task, load_records


def write(path: Path, *lines) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def rows(n: int) -> list[dict]:
    return [{"question": f"q{i}", "answer": f"#### {i}", "extra": i} for i in range(n)]


def test_records_of_a_file_are_drawn_by_the_seed(tmp_path: Path):
    """Catches columns that are dropped, all records in an order that is not the file's, the first records of a sorted
    file used as a sample, and a sample that differs between runs."""
    path, task = write(tmp_path / "a.jsonl", *rows(30)), get_task("gsm8k")
    assert load_records(task, "train", data_file=path) == rows(30)
    drawn = load_records(task, "train", 20, seed=1, data_file=path)
    assert drawn == load_records(task, "train", 20, seed=1, data_file=path)
    assert drawn[:5] == load_records(task, "train", 5, seed=1, data_file=path)
    assert drawn != load_records(task, "train", 20, seed=2, data_file=path)
    assert drawn != rows(20)
    assert len({record["extra"] for record in drawn}) == 20


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("gsm8k", '{"question": ', "is not valid JSON"),
        ("gsm8k", {"question": "q"}, r"lacks 'answer', which task 'gsm8k' needs; it has \['question'\]"),
    ],
)
def test_refuses_broken_lines(tmp_path: Path, name: str, line, message: str):
    """Catches a damaged line that is reported as a KeyError during a run, without its number."""
    with pytest.raises(ValueError, match=rf"line 2 of .*a\.jsonl.* {message}"):
        load_records(get_task(name), "test", data_file=write(tmp_path / "a.jsonl", "", line))


@pytest.mark.parametrize(
    ("name", "split", "options", "message"),
    [
        ("gsm8k", "validation", {}, "`split` of task 'gsm8k' must be one of train, test, got 'validation'"),
        ("math", "test", {"n": 0}, "`n` must be from 1 to 1024, the number of records in test of math, got 0"),
        ("math", "test", {"n": 1025}, "`n` must be from 1 to 1024, the number of records in test of math, got 1025"),
    ],
)
def test_refuses_what_does_not_exist(name: str, split: str, options: dict, message: str):
    """Catches another split used for a missing one, and a download before the error."""
    with pytest.raises(ValueError, match=message):
        load_records(get_task(name), split, **options)


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("gsm8k", "train", ("openai/gsm8k", "main")),
        ("mbpp", "prompt", ("google-research-datasets/mbpp", "full")),
        ("humaneval", "test", ("openai/openai_humaneval", None)),
    ],
)
def test_asks_the_hub_for_the_right_set(monkeypatch: pytest.MonkeyPatch, name: str, split: str, expected: tuple):
    """Catches a wrong id, config or split, rows in another order than a file's, and rows that are not dicts."""
    asked = []
    data = [{column: f"{column} {i}" for column in TASKS[name].columns} for i in range(9)]
    for record in data:
        if "test_list" in record:
            record["test_list"] = [record["test_list"]]

    def load_dataset(dataset, config, *, split):
        asked.append((dataset, config, split))
        return datasets.Dataset.from_list(data)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = get_task(name)
    assert load_records(task, split) == data
    some = load_records(task, split, 4, seed=2)
    assert asked == [(*expected, split)] * 2
    assert len(some) == 4
    assert all(record in data for record in some)
    assert some != data[:4]


def test_errors_name_the_missing_package(monkeypatch: pytest.MonkeyPatch):
    """Catches a missing optional package that is reported as a bare ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install .hf-diversed\[train\]"):
        load_records(get_task("gsm8k"), "test")
