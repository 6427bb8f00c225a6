"""Records of a task as rows for training: a "prompt" beside the columns that rewards read."""

from collections.abc import Sequence
from typing import Any

from hf_diversed.tasks.base import Record, Task, choose_shots


def prompt_rows(
    task: Task, records: Sequence[Record], *, pool: Sequence[Record] = (), shots: int = 0, chat: bool = False
) -> list[dict[str, Any]]:
    """Return one row per record: its columns, and "prompt" as text, or as chat messages if `chat`.

    Args:
        pool: where the `shots` solved examples before every prompt come from; a record never is its own example.
    """
    rows = []
    for record in records:
        chosen = choose_shots(pool, shots, record) if shots else []
        prompt: str | list[dict[str, str]] = task.few_shot_prompt(record, chosen)
        if chat:
            prompt = []
            for shot in chosen:
                question, answer = task.chat_turn(shot)
                prompt += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            prompt.append({"role": "user", "content": task.chat_turn(record)[0]})
        rows.append({**record, "prompt": prompt})
    return rows
