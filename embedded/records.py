"""Draw the records of the embedded tasks.

python -m embedded.records math train --seed 7 --n 2000 --output math.jsonl

`hf-diversed train --task math --data-file math.jsonl` reads the file. `--packaged` writes the package's records
instead.
"""

import argparse
import bz2
import hashlib
import json
import random
from pathlib import Path

from embedded.corpus import FAMILIES, TARGET_STYLE, Example, is_held_out
from hf_diversed.tasks.embedded import RECORDS, SEEDS


TASKS = ("math", "summary", "code")
NUM_PACKAGED = 1024  # of each split
_PATIENCE = 20_000  # a family is exhausted after so many consecutive draws without a new record


def draw(family: str, split: str, n: int, seed: int, patience: int = _PATIENCE) -> list[Example]:
    """Draw `n` examples with distinct prompts, in the wording of the target's training text.

    A smaller `n` returns a prefix. The hash of an example's key determines its split, so the splits are disjoint for
    any seeds. The models were not trained on "validation" and "test".

    Raises:
        ValueError: if the family has fewer than `n` examples in this split.
    """
    rng = random.Random(f"{family}/{split}/{seed}")
    found: dict[str, Example] = {}
    keys: set[str] = set()
    fruitless = 0
    while len(found) < n:
        example = FAMILIES[family](rng, TARGET_STYLE)
        if split_of(example.key) == split and example.key not in keys and example.prompt not in found:
            found[example.prompt] = example
            keys.add(example.key)
            fruitless = 0
        elif (fruitless := fruitless + 1) > patience:
            raise ValueError(
                f"`n` must be at most {len(found)}, got {n}: {patience} more draws found nothing new in "
                f"{family!r}/{split}."
            )
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


def _json_lines(task: str, split: str, n: int, seed: int) -> str:
    return "".join(json.dumps(record) + "\n" for record in draw_records(task, split, n, seed))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m embedded.records", description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS, nargs="?")
    parser.add_argument("split", choices=SEEDS, nargs="?")
    parser.add_argument("--n", type=int, default=NUM_PACKAGED)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--packaged", action="store_true", help="write the package's files")
    arguments = parser.parse_args(argv)
    if arguments.packaged:
        for task in TASKS:
            for split, seed in SEEDS.items():
                lines = _json_lines(task, split, NUM_PACKAGED, seed)
                (RECORDS / f"{task}.{split}.jsonl.bz2").write_bytes(bz2.compress(lines.encode()))
    elif arguments.split is None or arguments.output is None:
        parser.error("task, split and --output are required without --packaged")
    else:
        lines = _json_lines(arguments.task, arguments.split, arguments.n, arguments.seed)
        arguments.output.write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
