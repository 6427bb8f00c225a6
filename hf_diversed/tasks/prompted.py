"""Few-shot and chat prompts of a task, as rows for training or as a task for evaluation."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_diversed.tasks.base import Record, Task, choose_shots


Prompt = str | list[dict[str, str]]


def render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], thinking: bool = False) -> str:
    """Return chat messages as text with special tokens; encode it with `add_special_tokens=False`.

    Args:
        thinking: the template's `enable_thinking`; without effect on templates that do not read it.
    """
    # Only where the template reads it, because tokenizers without a Jinja template refuse other arguments.
    switch = {"enable_thinking": thinking} if "enable_thinking" in str(tokenizer.chat_template) else {}
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch))


def prompt_rows(
    task: Task, records: Sequence[Record], *, pool: Sequence[Record] = (), shots: int = 0, chat: bool = False
) -> list[dict[str, Any]]:
    """Return one row per record: its columns, and "prompt" as text, or as chat messages if `chat`. An existing column
    "prompt" is renamed to "task_prompt".

    Args:
        pool: records from which the `shots` solved examples are taken; a record is never its own example.
    """
    rows = []
    for record in records:
        chosen = choose_shots(pool, shots, record)
        row = dict(record)
        if "prompt" in row:
            row["task_prompt"] = row["prompt"]
        row["prompt"] = task.chat_messages(record, chosen) if chat else task.few_shot_prompt(record, chosen)
        rows.append(row)
    return rows


class PromptedTask:
    """A task with the prompts of `prompt_rows` as text: after solved examples, or in a chat template, which needs no
    stop strings. Scores are those of the task.

    Args:
        tokenizer: provides the chat template. Tokenize chat prompts with `add_special_tokens=False`.
        pool: records from which the `shots` solved examples are taken; a record is never its own example.
        thinking: with `chat`, let the model think, if the chat template has `enable_thinking`. By default it answers
            at once, because thoughts rarely end within the task's number of tokens.

    Raises:
        ValueError: for `thinking` without `chat`.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pool: Sequence[Record] = (),
        shots: int = 0,
        chat: bool = False,
        thinking: bool = False,
    ):
        if thinking and not chat:
            raise ValueError("`thinking` needs `chat`, which applies the chat template.")
        self.task, self.tokenizer, self.pool, self.shots, self.chat = task, tokenizer, pool, shots, chat
        self.thinking = thinking
        self.name, self.metric, self.max_new_tokens = task.name, task.metric, task.max_new_tokens
        self.stop_strings: Sequence[str] = () if chat else task.stop_strings

    def prompt(self, record: Record) -> str:
        """Return the prompt as text. Raises ValueError if the pool is too small."""
        (row,) = prompt_rows(self.task, [record], pool=self.pool, shots=self.shots, chat=self.chat)
        if not self.chat:
            return row["prompt"]
        return render(self.tokenizer, row["prompt"], self.thinking)

    def score_batch(self, completions: Sequence[str], records: Sequence[Record]) -> list[float]:
        """Return the task's scores."""
        return self.task.score_batch(completions, records)
