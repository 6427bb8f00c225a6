"""The interface of tasks: prompts, references, and a score used as training reward and evaluation metric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any


Record = Mapping[str, Any]


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hub: its id, and its config, or None if it has only one."""

    dataset: str
    config: str | None = None


class Task:
    """A dataset with prompts and a score. A subclass sets the attributes and defines `prompt`, `reference` and
    `score`. A record is a mapping with the dataset's columns.

    Attributes:
        name: key in `TASKS`.
        metric: name of the score in tables: "accuracy", "rouge2" or "pass@1".
        source: the dataset on the Hub; None for an embedded task, whose records are packaged.
        splits: the existing splits.
        columns: columns that a record must have, the prompt's text first.
        score_columns: columns that `score` reads.
        max_new_tokens: a length that almost all references fit in.
        stop_strings: strings at which a completion of a plain prompt ends; `score` cuts there, and a decoder may stop
            there. Chat prompts do not need them.
        scorer_modules: modules of optional packages that `score` imports.
    """

    name: str
    metric: str
    source: HubSource | None = None
    splits: tuple[str, ...]
    columns: tuple[str, ...]
    score_columns: tuple[str, ...]
    max_new_tokens: int
    stop_strings: tuple[str, ...] = ()
    scorer_modules: tuple[str, ...] = ()

    def prompt(self, record: Record) -> str:
        """Return the zero-shot prompt."""
        raise NotImplementedError

    def reference(self, record: Record) -> str:
        """Return a correct continuation of the prompt, including the white space between them."""
        raise NotImplementedError

    def score(self, completion: str, record: Record) -> float:
        """Return the score of a completion, in [0, 1]."""
        raise NotImplementedError

    def check_scoring(self) -> None:
        """Raise before decoding if completions cannot be scored on this machine."""
        for module in self.scorer_modules:
            try:
                import_module(module)
            except ImportError as error:
                raise ImportError(f"task {self.name!r} is scored by {module}; install hf-diversed[train].") from error

    def score_batch(self, completions: Sequence[str], records: Sequence[Record]) -> list[float]:
        """Return one score per completion; completion `i` answers record `i`."""
        return [self.score(completion, record) for completion, record in zip(completions, records, strict=True)]

    def few_shot_prompt(self, record: Record, shots: Sequence[Record] = ()) -> str:
        """Return the plain prompt after solved records, separated by blank lines.

        `shots` must not contain `record`; see `choose_shots`.
        """
        solved = [(self.prompt(shot) + self.reference(shot)).rstrip() for shot in shots]
        return "\n\n".join([*solved, self.prompt(record)])

    def chat_messages(self, record: Record, shots: Sequence[Record] = ()) -> list[dict[str, str]]:
        """Return the prompt as messages, with solved records as earlier turns."""
        messages = []
        for shot in shots:
            messages.append({"role": "user", "content": self.chat_question(shot)})
            messages.append({"role": "assistant", "content": self.chat_answer(shot)})
        return [*messages, {"role": "user", "content": self.chat_question(record)}]

    def chat_question(self, record: Record) -> str:
        """Return the user's message."""
        return self.prompt(record).rstrip()

    def chat_answer(self, record: Record) -> str:
        """Return the assistant's reference answer."""
        return self.reference(record).strip()

    def trim(self, completion: str) -> str:
        """Cut a completion at the first stop string."""
        ends = [completion.find(stop) for stop in self.stop_strings]
        return completion[: min((end for end in ends if end >= 0), default=None)]

    def missing_columns(self, record: Record, columns: Sequence[str] | None = None) -> list[str]:
        """Return those of `columns` that a record lacks; by default of the required ones."""
        return [name for name in (self.columns if columns is None else columns) if record.get(name) is None]


def choose_shots(pool: Sequence[Record], n: int, record: Record) -> list[Record]:
    """Return the first `n` records of a pool that differ from `record`. Raises ValueError if there are fewer."""
    shots = list(islice((shot for shot in pool if shot != record), n))
    if len(shots) < n:
        raise ValueError(f"`n` shots must be at most {len(shots)}, the other records of the pool, got {n}.")
    return shots
