"""Records of the embedded tasks."""

import pytest

from hf_diversed.corpus import is_held_out
from hf_diversed.tasks import embedded as embedded_module
from hf_diversed.tasks import get_task


NAMES = ["math", "summary", "code"]


def draw(name: str, split: str, n: int, seed: int = 0) -> list[dict]:
    task = get_task(name)
    assert isinstance(task, embedded_module.EmbeddedTask)
    return task.draw(split, n, seed)


@pytest.mark.parametrize("name", NAMES)
def test_splits_are_disjoint(name: str):
    """Catches held-out records that training sees, and test records that choose the best head."""
    keys = {split: {record["key"] for record in draw(name, split, 60)} for split in ("train", "validation", "test")}
    assert not any(map(is_held_out, keys["train"]))
    assert all(map(is_held_out, keys["validation"] | keys["test"]))
    assert not keys["validation"] & keys["test"]
    for split in ("validation", "test"):
        assert {embedded_module._split_of(key) for key in keys[split]} == {split}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_records_are_distinct_and_fixed_by_the_seed(name: str, split: str):
    """Catches one prompt counted twice, two runs that compare different prompts, and splits that share a stream."""
    records = draw(name, split, 40)
    assert len({record["prompt"] for record in records}) == len({record["key"] for record in records}) == 40
    assert draw(name, split, 40) == records
    assert draw(name, split, 10) == records[:10]
    assert draw(name, split, 10, seed=1) != records[:10]
    assert not get_task(name).missing_columns(records[0])


@pytest.mark.parametrize("name", ["math", "summary"])
def test_references_score_one(name: str):
    """Catches a score that the corpus's own completions do not reach."""
    task = get_task(name)
    records = draw(name, "test", 20)
    assert task.score_batch([task.reference(record) for record in records], records) == [1.0] * 20


def test_refuses_more_records_than_there_are(monkeypatch: pytest.MonkeyPatch):
    """Catches a search without end for records that do not exist."""
    few = "code/solve/count/same/all/"
    monkeypatch.setattr(embedded_module, "_split_of", lambda key: "train" if key.startswith(few) else "test")
    monkeypatch.setattr(embedded_module, "_PATIENCE", 3000)
    with pytest.raises(ValueError, match="`n` must be at most 1, got 2: 3000 more draws found nothing new in 'code'/"):
        draw("code", "train", 2)
