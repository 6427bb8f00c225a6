"""Draw the records of the embedded tasks; `python -m embedded.records` writes those of the package."""

import bz2
import hashlib
import json
import random

from embedded.corpus import FAMILIES, TARGET_STYLE, Example, is_held_out
from hf_diversed.tasks.embedded import RECORDS, SEEDS


TASKS = ("math", "summary", "code")
NUM_PACKAGED = 1024  # of each split


def draw(family: str, split: str, n: int, seed: int) -> list[Example]:
    """Draw `n` examples with distinct prompts, in the wording of the target's training text.

    A smaller `n` returns a prefix. The hash of an example's key determines its split, so the splits are disjoint for
    any seeds. The models were not trained on "validation" and "test".
    """
    rng = random.Random(f"{family}/{split}/{seed}")
    found: dict[str, Example] = {}
    keys: set[str] = set()
    while len(found) < n:
        example = FAMILIES[family](rng, TARGET_STYLE)
        if split_of(example.key) == split and example.key not in keys and example.prompt not in found:
            found[example.prompt] = example
            keys.add(example.key)
    return list(found.values())


def split_of(key: str) -> str:
    """Return the split of a key; keys that the corpus holds out are divided by a second hash."""
    if not is_held_out(key):
        return "train"
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"validation").digest()
    return "validation" if digest[0] % 2 else "test"


def draw_records(task: str, split: str, n: int, seed: int) -> list[dict[str, str]]:
    """Return drawn examples as the records of a task; see `draw`."""
    fields = ("prompt", "completion", "answer")
    return [{name: getattr(example, name) for name in fields} for example in draw(task, split, n, seed)]


if __name__ == "__main__":
    for task in TASKS:
        for split, seed in SEEDS.items():
            records = draw_records(task, split, NUM_PACKAGED, seed)
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (RECORDS / f"{task}.{split}.jsonl.bz2").write_bytes(bz2.compress(lines.encode()))
