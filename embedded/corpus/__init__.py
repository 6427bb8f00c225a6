"""Procedural text for the embedded pair: task families, their held-out split, and the training text of the pair.

A family is one module with a `sample` and one line in `FAMILIES`. `hf_diversed.tasks` scores completions.
"""

import random
from collections.abc import Iterator, Mapping

from embedded.corpus import code, drills, math, summary
from embedded.corpus.base import Example, Family, is_held_out
from embedded.corpus.wording import TARGET_STYLE, Style


__all__ = ["FAMILIES", "RESULTS_ONLY", "STYLES", "Example", "Family", "Style", "is_held_out", "training_examples"]

FAMILIES: dict[str, Family] = {
    "math": math.sample,
    "summary": summary.sample,
    "code": code.sample,
    "drills": drills.sample,
}
# Of these completions only the digits behind an equals sign can be predicted; the rest is drawn at random.
RESULTS_ONLY = {"drills"}

# The target sees every wording; the draft prefers some wordings and rarely sees some plans. The draft mostly writes an
# equation before the words for its result: in forms that name the operation first, the choice of words would be a
# choice of what is computed.
STYLES = {
    "target": TARGET_STYLE,
    "draft": Style(habit=-3.2, plan_habit=-0.7, forms=(1.0, 5.0, 1.0, 3.0, 0.3, 0.3)),
}


def training_examples(mix: Mapping[str, float], style: Style, seed: str) -> Iterator[Example]:
    """Yield training examples endlessly, families drawn with the weights of `mix`; equal seeds give equal text."""
    rng = random.Random(seed)
    names, weights = list(mix), list(mix.values())
    while True:
        example = FAMILIES[rng.choices(names, weights)[0]](rng, style)
        if not is_held_out(example.key):
            yield example
