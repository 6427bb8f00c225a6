"""Load tasks, records and solved examples for the commands."""

from pathlib import Path
from typing import Any

from transformers.utils import logging

from hf_diversed.tasks import Task, get_task, load_records
from hf_diversed.tasks.loading import choose, parse_lines


def quiet_transformers() -> None:
    """Hide the progress bars and warnings of transformers. Warnings of this library are still shown."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def load_task(name: str, allow_code_execution: bool = False, allow_unsafe_code_execution: bool = False) -> Task:
    """Return a task that can score completions on this machine."""
    task = get_task(
        name, allow_code_execution=allow_code_execution, allow_unsafe_code_execution=allow_unsafe_code_execution
    )
    task.check_scoring()
    return task


def read_records(task: Task, split: str, n: int, seed: int, data_file: str | None) -> list[dict[str, Any]]:
    """Return `n` records of a split or a file; all records of a smaller file."""
    if data_file is None:
        return load_records(task, split, n, seed)
    records = load_records(task, split, data_file=data_file)
    return choose(records, min(n, len(records)), seed, data_file)


def read_shots(task: Task, shots: int, shots_file: str | None, seed: int) -> list[dict[str, Any]]:
    """Return the records of which solved examples are taken: those of a file, or of the training split."""
    if shots_file is not None:
        return parse_lines(Path(shots_file), task)
    # One more than `shots`, because a record is never its own example.
    return load_records(task, "train", shots + 1, seed) if shots else []
