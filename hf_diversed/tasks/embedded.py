"""Tasks of the embedded pair: their records are drawn from `hf_diversed.corpus`, offline and without end."""

import hashlib
import random
from dataclasses import asdict
from typing import Any

from hf_diversed.corpus import FAMILIES, TARGET_STYLE, is_held_out
from hf_diversed.tasks.base import Record, Task


_PATIENCE = 20_000  # draws in a row that find nothing new: far more than a family with a few records left would need


class EmbeddedTask(Task):
    """A family of the corpus, of the same name, as a task: columns `prompt`, `completion`, `answer`, `key`."""

    splits = ("train", "validation", "test")
    columns = ("prompt", "completion", "answer")
    score_columns = ("answer",)

    def prompt(self, record: Record) -> str:
        return record["prompt"]

    def reference(self, record: Record) -> str:
        return record["completion"]

    def draw(self, split: str, n: int, seed: int) -> list[dict[str, Any]]:
        """Draw `n` records with distinct prompts, worded as the target's training text; a smaller `n` gives the first
        of them.

        A record's key decides on its split, by its hash alone: "train" is what the corpus does not hold out, and a
        second, independent hash divides what it does hold out into "validation" and "test". So the three are disjoint
        whatever the seeds, and a model trained on the corpus has seen neither of the last two.

        Raises:
            ValueError: if the family has fewer than `n` such records.
        """
        rng = random.Random(f"{self.name}/{split}/{seed}")
        sample = FAMILIES[self.name]
        records: dict[str, dict[str, Any]] = {}
        keys: set[str] = set()
        fruitless = 0
        while len(records) < n:
            example = sample(rng, TARGET_STYLE)
            if _split_of(example.key) == split and example.key not in keys and example.prompt not in records:
                records[example.prompt] = asdict(example)
                keys.add(example.key)
                fruitless = 0
                continue
            fruitless += 1
            if fruitless > _PATIENCE:
                raise ValueError(
                    f"`n` must be at most {len(records)}, got {n}: {_PATIENCE} more draws found nothing new in "
                    f"{self.name!r}/{split}."
                )
        return list(records.values())


def _split_of(key: str) -> str:
    if not is_held_out(key):
        return "train"
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"validation").digest()
    return "validation" if digest[0] % 2 else "test"
