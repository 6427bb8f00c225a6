"""Records of a task as rows for training: a "prompt" beside the columns that rewards read."""

from collections.abc import Sequence
from typing import Any

from hf_diversed.tasks.base import Record, Task, choose_shots


def prompt_rows(
    task: Task, records: Sequence[Record], *, pool: Sequence[Record] = (), shots: int = 0, chat: bool = False
) -> list[dict[str, Any]]:
    """Return one row per record: its columns, and "prompt" as text, or as chat messages if `chat`. A column of the
    record's own that is called "prompt" moves to "task_prompt".

    Args:
        pool: where the `shots` solved examples before every prompt come from; a record never is its own example.
    """
    rows = []
    for record in records:
        chosen = choose_shots(pool, shots, record) if shots else []
        row = dict(record)
        if "prompt" in row:
            row["task_prompt"] = row["prompt"]
        row["prompt"] = task.chat_messages(record, chosen) if chat else task.few_shot_prompt(record, chosen)
        rows.append(row)
    return rows
