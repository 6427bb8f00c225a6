"""Rewards with the signature of TRL: functions `(completions, **columns) -> list[float | None]`.

A reward is called with keywords: `prompts`, `completions`, `completion_ids`, and every other column of the dataset as
a list, one entry per completion. Completions are strings, or lists of chat messages. None skips a sample.
"""

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from accelerate.utils import gather_object

from hf_diversed.tasks import get_task
from hf_diversed.tasks.base import Record, Task


RewardFunc = Callable[..., list[float | None]]
Rows = Sequence[dict[str, Any]]
_NO_COLUMNS = {"prompts", "completions", "completion_ids"}
_EXCERPT = 200  # largest length of an item in a message


class RewardError(ValueError):
    """A reward that raised or returned an invalid value; the message names it and, if possible, the prompt."""


def _as_text(completion: str | Sequence[dict[str, Any]]) -> str:
    """Return the text of a completion; for chat messages, the content of the last one. Raises TypeError for others."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and completion and isinstance(completion[-1], dict):
        content = completion[-1].get("content")
        if isinstance(content, str):
            return content
    raise TypeError(f"a completion must be text or a list of messages with text content, got {completion!r}.")


def task_reward(task: Task) -> RewardFunc:
    """Return the score of a task as a reward function with the task's name. It reads `task.score_columns` and returns
    None for samples without values in them, as in a mixture of datasets. The column `prompt`, which TRL does not pass,
    is read from `prompts` if these are text.

    Raises:
        ValueError: when called without one of the columns, or with values of another type than the task reads.
    """

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts = [_as_text(completion) for completion in completions]
        records = _records(task, columns, len(texts))
        scored = [i for i, record in enumerate(records) if not task.missing_columns(record, task.score_columns)]
        for index in scored:
            task.check_types(records[index], f"sample {index}")
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
        ValueError: if there is no such task, module or function, or running code is not allowed.
        ImportError: if the package that scores the task is not installed.
        TypeError: if the path names an object that is not callable.
    """
    if callable(spec):
        return spec
    if spec.startswith("task:"):
        name = spec.removeprefix("task:")
        task = get_task(
            name, allow_code_execution=allow_code_execution, allow_unsafe_code_execution=allow_unsafe_code_execution
        )
        task.check_scoring()
        return task_reward(task)
    module, _, name = spec.rpartition(".")
    if not all(part.isidentifier() for part in spec.split(".")) or not module:
        raise ValueError(f'a reward must be "task:name" or "package.module.function", got {spec!r}.')
    function = _import(module, name, spec)
    if not callable(function):
        raise TypeError(f"reward {spec!r} must be a function, got {type(function).__name__}.")
    return function


def call_reward(function: RewardFunc, completions: Sequence[Any], /, **columns: Any) -> list[float | None]:
    """Call a reward function. Raises `RewardError` if it raises, or does not return one finite number or None per
    completion."""
    name = _name(function)
    try:
        values = function(completions=completions, **columns)
    except Exception as error:  # a user's function may raise any exception
        raise RewardError(
            f"reward {name!r} raised {type(error).__name__}: {error}. Fix the reward, or return None to skip a "
            "completion that it cannot score."
        ) from error
    if inspect.iscoroutine(values):
        values.close()
        raise RewardError(f"reward {name!r} is async, which is not supported; pass a plain function.")
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, Sequence) else type(values).__name__
        raise RewardError(f"reward {name!r} must return a list of {len(completions)}, one per completion, got {got}.")
    return [_number(value, name, partial(_place, index, completions, columns)) for index, value in enumerate(values)]


class RewardSum:
    """The weighted sum of rewards, and each reward by name. A sample's sum omits rewards that are None; if all are
    None, so is the sum.

    Attributes:
        names: name of each reward.

    Args:
        functions: at least one function or name, see `load_reward`; equal names get a number.
        weights: one per function; all 1 by default.

    Raises:
        ValueError: if there are no functions, the number of weights differs, or a weight is not finite.
    """

    def __init__(self, functions: Sequence[RewardFunc | str], weights: Sequence[float] | None = None):
        self.functions = [load_reward(function) for function in functions]
        self.weights = [1.0] * len(self.functions) if weights is None else [float(weight) for weight in weights]
        if not self.functions:
            raise ValueError("`functions` must hold at least one reward, got none.")
        if len(self.weights) != len(self.functions):
            raise ValueError(
                f"reward_weights must hold {len(self.functions)}, one per reward, got {len(self.weights)}."
            )
        if not all(map(math.isfinite, self.weights)):
            raise ValueError(f"reward_weights must be finite, got {self.weights}.")
        names = [_name(function) for function in self.functions]
        self.names = [name if names.count(name) == 1 else f"{name}_{index}" for index, name in enumerate(names)]

    def __call__(self, completions: Sequence[Any], /, **columns: Any) -> dict[str, list[float | None]]:
        """Return lists of one entry per completion: "reward", the sum, and "rewards/<name>" of every function."""
        rewards = [call_reward(function, completions, **columns) for function in self.functions]
        return {
            "reward": [_weighted_sum(values, self.weights) for values in zip(*rewards)],
            **{f"rewards/{name}": values for name, values in zip(self.names, rewards)},
        }

    def of_rows(self, rows: Rows, texts: list[str], completion_ids: list[list[int]]) -> dict[str, list[float | None]]:
        """Return the same for completions of dataset rows, with TRL's calling convention."""
        chat = [[{"role": "assistant", "content": text}] for text in texts]
        completions = texts if isinstance(rows[0]["prompt"], str) else chat
        names = {name: None for row in rows for name in row if name != "prompt"}  # rows of several tasks differ
        columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
        columns |= {"prompts": [row["prompt"] for row in rows], "completion_ids": completion_ids}
        return self(completions, **columns)


def _weighted_sum(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    terms = [weight * value for value, weight in zip(values, weights) if value is not None]
    return sum(terms) if terms else None


def _number(value: Any, name: str, place: Callable[[], str]) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward {name!r} must return numbers or None, got {value!r} {place()}.") from error
    if not math.isfinite(number):
        raise RewardError(
            f"reward {name!r} must return finite numbers or None, got {number} {place()}; None skips a completion."
        )
    return number


def _place(index: int, completions: Sequence[Any], columns: dict[str, Any]) -> str:
    prompts = columns.get("prompts", ())
    prompt = f" of prompt {_excerpt(prompts[index])}" if _is_list(prompts, len(completions)) else ""
    return f"for completion {_excerpt(completions[index])}{prompt}"


def _excerpt(item: Any) -> str:
    shown = repr(item)
    return shown if len(shown) <= _EXCERPT else f"{shown[:_EXCERPT]}..."


def _records(task: Task, columns: dict[str, Any], count: int) -> list[Record]:
    """Return records made from columns; raise if a column of the score is missing."""
    prompts = columns.get("prompts", ())
    lists = {name: values for name, values in columns.items() if name not in _NO_COLUMNS and _is_list(values, count)}
    if _is_list(prompts, count) and all(isinstance(prompt, str) for prompt in prompts):
        lists.setdefault("prompt", prompts)
    for column in task.score_columns:
        names = column.split("|")
        if not any(name in lists for name in names):
            raise ValueError(
                f"the reward of task {task.name!r} needs column {' or '.join(map(repr, names))}, a list with one "
                f"entry for each of the {count} completions; such columns are {sorted(lists)}."
            )
    return [{name: values[index] for name, values in lists.items()} for index in range(count)]


def _is_list(values: Any, count: int) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str) and len(values) == count


def _import(module: str, name: str, spec: str) -> Any:
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"module {module!r} of reward {spec!r} cannot be imported ({error}); install it, or put its folder on "
            "PYTHONPATH."
        ) from error
    try:
        return getattr(imported, name)
    except AttributeError as error:
        raise ValueError(f"reward {spec!r} does not exist: module {module!r} has no {name!r}.") from error


def _name(function: RewardFunc) -> str:
    return function.__name__ if inspect.isroutine(function) else type(function).__name__


def gathered(make: Callable[[], list]) -> list:
    """Return the items that `make` returns on all devices, in the order of their ranks. A `RewardError` on one device
    is raised on all, because the others would wait forever."""
    try:
        local = make()
    except RewardError as error:
        local = [error]
    items = gather_object(local)
    if failed := next((item for item in items if isinstance(item, RewardError)), None):
        raise failed
    return items


def merged(by_device: list[dict[str, list]]) -> dict[str, list]:
    """Concatenate the facts of all devices, in the order of their ranks."""
    return {name: [value for facts in by_device for value in facts[name]] for name in by_device[0]}


def known(values: Sequence[float | None]) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for no values."""
    return sum(values) / len(values) if values else float("nan")
