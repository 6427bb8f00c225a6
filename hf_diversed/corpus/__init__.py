"""Procedural text for the embedded pair: task families and their held-out split.

A family is one module with a `sample` and one line in `FAMILIES`. How right a completion is, is the business of
`hf_diversed.tasks`; the folder `embedded/` of the repository makes the pair's training text of the families.
"""

import random

from hf_diversed.corpus import code, math, summary
from hf_diversed.corpus.base import Example, Family, is_held_out
from hf_diversed.corpus.wording import TARGET_STYLE, Style


__all__ = ["FAMILIES", "TARGET_STYLE", "Example", "Family", "Style", "held_out_examples", "is_held_out"]

FAMILIES: dict[str, Family] = {"math": math.sample, "summary": summary.sample, "code": code.sample}


def held_out_examples(family: str, n: int, seed: int) -> list[Example]:
    """Return `n` distinct examples that no training stream contains, worded as the target's training text is."""
    rng = random.Random(f"held-out/{family}/{seed}")
    found: dict[str, Example] = {}
    while len(found) < n:
        example = FAMILIES[family](rng, TARGET_STYLE)
        if is_held_out(example.key):
            found.setdefault(example.key, example)
    return list(found.values())
