"""A task under other prompts than its plain ones, as a head was trained on."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_diversed.tasks.base import Record, Task, choose_shots


class PromptedTask:
    """A task whose prompts are those of `prompt_rows`, as text: after solved examples, or in a chat template, where
    the turn ends by itself and no stop string does. Its score is the task's own.

    Attributes:
        prompt_format: the arguments that are not those of the plain prompt, for an evaluation's header.

    Args:
        tokenizer: whose template `chat` means. Tokenize such a prompt with `add_special_tokens=False`.
        pool: where the `shots` solved examples before every prompt come from; a record never is its own example.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        *,
        pool: Sequence[Record] = (),
        shots: int = 0,
        chat: bool = False,
    ):
        self.task, self.tokenizer, self.pool, self.shots, self.chat = task, tokenizer, pool, shots, chat
        self.name, self.metric, self.max_new_tokens = task.name, task.metric, task.max_new_tokens
        self.stop_strings: Sequence[str] = () if chat else task.stop_strings
        self.prompt_format: dict[str, Any] = {"shots": shots, "chat": chat} if shots or chat else {}

    def prompt(self, record: Record) -> str:
        """Return the prompt as text.

        Raises:
            ValueError: if the pool is too small, or the tokenizer has no chat template and `chat` asks for it.
        """
        chosen = choose_shots(self.pool, self.shots, record)
        if self.chat:
            return self.task.chat_prompt(record, self.tokenizer, chosen)
        return self.task.few_shot_prompt(record, chosen)

    def score_batch(self, completions: Sequence[str], records: Sequence[Record]) -> list[float]:
        """Return the task's scores."""
        return self.task.score_batch(completions, records)
