"""Tasks of the embedded pair, with packaged records."""

import bz2
import json
import random
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_diversed.tasks.base import Record, Task
from hf_diversed.tasks.code import extract_code
from hf_diversed.tasks.execution import CodeTask, checked_tests
from hf_diversed.tasks.summaries import rouge2


RECORDS = Path(__file__).parent / "records"
# Seed that the packaged records of each split were drawn with, in this order; the packaged heads used seed 42.
SEEDS = {"train": 42, "validation": 42, "test": 0}


class EmbeddedTask(Task):
    """A task of the embedded pair: columns `prompt`, `completion`, `answer`.

    The pair was trained on neither "validation" nor "test"; no problem is in two splits.
    """

    splits = tuple(SEEDS)
    columns = ("prompt", "completion", "answer")
    score_columns = ("answer",)

    def prompt(self, record: Record) -> str:
        return record["prompt"]

    def reference(self, record: Record) -> str:
        return record["completion"]

    def records(self, split: str, seed: int) -> list[dict[str, Any]]:
        """Return all packaged records of a split: in packaged order for `SEEDS[split]`, else shuffled by the seed."""
        records = [json.loads(line) for line in _lines(self.name, split)]
        if seed != SEEDS[split]:
            random.Random(seed).shuffle(records)
        return records


@lru_cache
def _lines(task: str, split: str) -> list[str]:
    return bz2.decompress((RECORDS / f"{task}.{split}.jsonl.bz2").read_bytes()).decode().splitlines()


_ANSWER = re.compile(r"The answer is (\d+)\.\s*$")


class Math(EmbeddedTask):
    """The answer is a number, which the last sentence of a completion must contain."""

    name = "math"
    metric = "accuracy"
    max_new_tokens = 128
    stop_strings = ("\nQuestion:",)

    def score(self, completion: str, record: Record) -> float:
        """Return 1.0 if the completion ends in `The answer is N.` with the right number, else 0.0."""
        return float(self._number(completion) == str(record["answer"]))

    def _number(self, completion: str) -> str | None:
        match = _ANSWER.search(self.trim(completion))
        return None if match is None else match[1]


class Summary(EmbeddedTask):
    """The answer is a sentence; the score is ROUGE-2."""

    name = "summary"
    metric = "rouge2"
    scorer_modules = ("rouge_score",)
    max_new_tokens = 64
    stop_strings = ("\nArticle:",)

    def score(self, completion: str, record: Record) -> float:
        return rouge2(self.trim(completion), record["answer"])


class Code(CodeTask, EmbeddedTask):
    """The answer has one `assert` statement per line; the tests import nothing."""

    name = "code"
    max_new_tokens = 128
    stop_strings = ("\nTask:",)

    def program(self, completion: str, record: Record) -> str:
        return extract_code(completion)

    def tests(self, record: Record) -> str:
        return checked_tests(self.name, record["answer"])
