"""Records of a task as training rows: a "prompt" and the columns that rewards read."""

from collections.abc import Sequence
from typing import Any

from hf_diversed.tasks.base import Record, Task, choose_shots


def prompt_rows(
    task: Task, records: Sequence[Record], *, pool: Sequence[Record] = (), shots: int = 0, chat: bool = False
) -> list[dict[str, Any]]:
    """Return one row per record: its columns, and "prompt" as text, or as chat messages if `chat`. A record's own
    column "prompt" is renamed to "task_prompt".

    Args:
        pool: records from which the `shots` solved examples are taken; a record is never its own example.
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
