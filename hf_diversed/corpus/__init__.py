"""Procedural text for the embedded pair: task families, their held-out split and their streams.

A family is one module with a `sample` (see `base.Family`) and one line in `FAMILIES`; the recipe mixes families by
weight. How right a completion is, is the business of `hf_diversed.tasks`.
"""

import random
from collections.abc import Iterator, Mapping

from hf_diversed.corpus.base import Example, Family, is_held_out
from hf_diversed.corpus.code import CODE
from hf_diversed.corpus.drills import DRILLS
from hf_diversed.corpus.math import MATH
from hf_diversed.corpus.summary import SUMMARY
from hf_diversed.corpus.wording import STYLES, Style


__all__ = ["FAMILIES", "STYLES", "Example", "Family", "Style", "held_out_examples", "is_held_out", "training_examples"]

FAMILIES: dict[str, Family] = {"math": MATH, "summary": SUMMARY, "code": CODE, "drills": DRILLS}


def training_examples(mix: Mapping[str, float], style: Style, seed: str) -> Iterator[Example]:
    """Yield training examples without end, families drawn by the weights of `mix`; a seed fixes the stream."""
    rng = random.Random(seed)
    names, weights = list(mix), list(mix.values())
    while True:
        example = FAMILIES[rng.choices(names, weights)[0]].sample(rng, style)
        if not is_held_out(example.key):
            yield example


def held_out_examples(family: str, n: int, seed: int) -> list[Example]:
    """Return `n` distinct examples that no training stream contains, worded as the target's training text is."""
    rng = random.Random(f"held-out/{family}/{seed}")
    found: dict[str, Example] = {}
    while len(found) < n:
        example = FAMILIES[family].sample(rng, STYLES["target"])
        if is_held_out(example.key):
            found.setdefault(example.key, example)
    return list(found.values())
