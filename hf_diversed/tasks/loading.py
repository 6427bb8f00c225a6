"""Records of a task: from a file, from the Hub, or from the package."""

import json
import random
from pathlib import Path
from typing import Any

from hf_diversed.tasks.base import Task
from hf_diversed.tasks.embedded import EmbeddedTask


def load_records(
    task: Task, split: str, n: int | None = None, seed: int = 0, data_file: str | Path | None = None
) -> list[dict[str, Any]]:
    """Load the records of a split.

    Args:
        task: the task.
        split: one of `task.splits`; ignored with a `data_file`, which is one split.
        n: number of records, the first ones after shuffling with `seed`; None for all.
        seed: seed of the shuffle. Files and datasets are not shuffled if all records are loaded. Embedded records keep
            their packaged order if `seed` equals `embedded.SEEDS[split]`, and are shuffled otherwise.
        data_file: JSON Lines file with the dataset's columns, read instead of the task's source.

    Raises:
        ValueError: if the split does not exist, `n` is below 1 or above the number of records, a column is missing, or
            the file is not valid JSON Lines.
    """
    if data_file is not None:
        return choose(parse_lines(Path(data_file), task), n, seed, str(data_file))
    if split not in task.splits:
        raise ValueError(f"`split` of task {task.name!r} must be one of {', '.join(task.splits)}, got {split!r}.")
    if isinstance(task, EmbeddedTask):
        return _first(task.records(split, seed), n, f"{split} of {task.name}")
    return _from_hub(task, split, n, seed)


def parse_lines(path: Path, task: Task) -> list[dict[str, Any]]:
    """Read the records of a JSON Lines file."""
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    records = [_read_line(line, f"line {number} of {path}", task) for number, line in numbered]
    if not records:
        raise ValueError(f"{path} contains no records.")
    return records


def _read_line(line: str, where: str, task: Task) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not valid JSON: {error}. Write one object per line.") from error
    if not isinstance(record, dict):
        raise ValueError(f"{where} must hold a JSON object, got {line.strip()[:60]}.")
    _check_columns(record, where, task)
    return record


def _from_hub(task: Task, split: str, n: int | None, seed: int) -> list[dict[str, Any]]:
    assert task.source is not None  # only embedded tasks have none
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            'loading a dataset from the Hub requires the package datasets: pip install "hf-diversed[train]".'
        ) from error
    rows = datasets.load_dataset(task.source.dataset, task.source.config, split=split)
    where = f"{split} of {task.source.dataset}"
    # Choose indices before reading rows: some datasets have millions.
    chosen = choose(list(range(len(rows))), n, seed, where)
    records = [dict(row) for row in rows.select(chosen)]
    for index, record in zip(chosen, records):
        _check_columns(record, f"record {index} of {where}", task)
    return records


def choose(items: list, n: int | None, seed: int, where: str) -> list:
    """Return the first `n` items after shuffling with `seed`; all, not shuffled, if `n` is None or their number."""
    if n is None or n == len(items):
        return items
    order = list(items)
    random.Random(seed).shuffle(order)
    return _first(order, n, where)


def _first(items: list, n: int | None, where: str) -> list:
    if n is not None and not 1 <= n <= len(items):
        raise ValueError(f"`n` must be from 1 to {len(items)}, the number of records in {where}, got {n}.")
    return items[:n]


def _check_columns(record: dict[str, Any], where: str, task: Task) -> None:
    if missing := task.missing_columns(record):
        raise ValueError(
            f"{where} lacks {', '.join(map(repr, missing))}, which task {task.name!r} needs; it has {sorted(record)}."
        )
