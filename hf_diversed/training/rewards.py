"""Rewards with the signature of TRL: functions `(completions, **columns) -> list[float | None]`.

A reward is called with keywords: `prompts`, `completions`, `completion_ids`, and every other column of the dataset as
a list, one entry per completion. Completions are strings, or lists of chat messages. None skips a sample.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_diversed.tasks import get_task
from hf_diversed.tasks.base import Task


RewardFunc = Callable[..., list[float | None]]
Rows = Sequence[dict[str, Any]]


def task_reward(task: Task) -> RewardFunc:
    """Return the score of a task as a reward function with the task's name. It reads `task.score_columns` and returns
    None for samples without values in them, as in a mixture of datasets."""

    def reward(completions: Sequence[Any], prompts: Sequence[Any], **columns: Any) -> list[float | None]:
        texts = [_as_text(completion) for completion in completions]
        read = [name for name in ("task_prompt", *task.score_columns) if name in columns]
        lists = {"prompt": prompts} | {name: columns[name] for name in read}
        records = [dict(zip(lists, values)) for values in zip(*lists.values())]
        scored = [i for i, record in enumerate(records) if not task.missing_columns(record, task.score_columns)]
        scores = task.score_batch([texts[i] for i in scored], [records[i] for i in scored])
        rewards: list[float | None] = [None] * len(texts)
        for index, score in zip(scored, scores):
            rewards[index] = score
        return rewards

    reward.__name__ = reward.__qualname__ = task.name
    return reward


def load_reward(
    spec: str | RewardFunc, *, allow_code_execution: bool = False, allow_unsafe_code_execution: bool = False
) -> RewardFunc:
    """Return the reward function for "task:gsm8k" or a dotted path. A callable is returned unchanged.

    Raises:
        ValueError: if there is no such task, or running code is not allowed.
        ImportError: if a module cannot be imported, or the package that scores the task is not installed.
        TypeError: if the path names no function.
    """
    if callable(spec):
        return spec
    if spec.startswith("task:"):
        task = get_task(
            spec.removeprefix("task:"),
            allow_code_execution=allow_code_execution,
            allow_unsafe_code_execution=allow_unsafe_code_execution,
        )
        task.check_scoring()
        return task_reward(task)
    module, _, name = spec.rpartition(".")
    if not module:
        raise ValueError(f"a reward must be task:NAME or package.module.function, got {spec!r}.")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise TypeError(f"reward {spec!r} must be a function of module {module!r}, got {function!r:.80}.")
    return function


def named_rewards(functions: Sequence[RewardFunc | str]) -> dict[str, RewardFunc]:
    """Load rewards with `load_reward` and return them by name.

    Names that occur more than once are followed by `_` and the position of the reward in the list.
    """
    loaded = [load_reward(reward) for reward in functions]
    names = [item.__name__ if inspect.isroutine(item) else type(item).__name__ for item in loaded]
    return {
        name if names.count(name) == 1 else f"{name}_{index}": function
        for index, (name, function) in enumerate(zip(names, loaded))
    }


def score_rows(
    functions: Mapping[str, RewardFunc],
    weights: Sequence[float],
    rows: Rows,
    texts: Sequence[str],
    completion_ids: Sequence[list[int]],
) -> list[dict[str, float | None]]:
    """Return the rewards of completions of dataset rows: "rewards/<name>" of every function, and "reward", their
    weighted sum. The sum omits rewards that are None; if all are None, so is the sum."""
    if not rows:
        return []
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    completions = list(texts) if isinstance(rows[0]["prompt"], str) else chat
    names = {name: None for row in rows for name in row if name != "prompt"}  # rows of several tasks differ
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    columns |= {"prompts": [row["prompt"] for row in rows], "completion_ids": completion_ids}
    by_name = {name: _call(name, function, completions, columns) for name, function in functions.items()}
    scores: list[dict[str, float | None]] = []
    for values in zip(*by_name.values()):
        terms = [weight * value for weight, value in zip(weights, values) if value is not None]
        scores.append({"reward": sum(terms) if terms else None})
        scores[-1] |= {f"rewards/{name}": value for name, value in zip(by_name, values)}
    return scores


def _call(
    name: str, function: RewardFunc, completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[float | None]:
    """Call a reward. Raises ValueError if it does not return one finite number or None per completion."""
    values = function(completions=completions, **columns)
    if not isinstance(values, Sequence) or len(values) != len(completions):
        raise ValueError(
            f"reward {name!r} must return a list of {len(completions)} numbers, one per completion, got "
            f"{values!r:.200}."
        )
    for value, completion in zip(values, completions):
        if value is not None and not math.isfinite(value):
            raise ValueError(
                f"reward {name!r} must return finite numbers, or None to skip a completion, got {value!r} for "
                f"{completion!r:.200}."
            )
    return [None if value is None else float(value) for value in values]


def _as_text(completion: str | Sequence[dict[str, Any]]) -> str:
    """Return the text of a completion; for chat messages, the content of the last one."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
