"""Tasks of the embedded pair, with packaged records."""

import bz2
import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from hf_diversed.tasks.base import Record, Task


RECORDS = Path(__file__).parent / "records"
# Seed whose records each split ships, in the order they were drawn; the packaged heads were trained with seed 42.
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
        """Return all packaged records of a split: in their own order for `SEEDS[split]`, else shuffled by the seed."""
        records = [json.loads(line) for line in _lines(self.name, split)]
        if seed != SEEDS[split]:
            random.Random(seed).shuffle(records)
        return records


@lru_cache
def _lines(task: str, split: str) -> list[str]:
    return bz2.decompress((RECORDS / f"{task}.{split}.jsonl.bz2").read_bytes()).decode().splitlines()
