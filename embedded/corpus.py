"""The training text of the pair: the package's task families and drills, mixed by weight, in each model's style."""

import random
from collections.abc import Iterator, Mapping

from embedded import drills
from hf_diversed import corpus
from hf_diversed.corpus import TARGET_STYLE, Example, Family, Style, is_held_out


FAMILIES: dict[str, Family] = {**corpus.FAMILIES, "drills": drills.sample}
# Of these completions only the digits behind an equals sign can be known; the rest is drawn at random.
RESULTS_ONLY = {"drills"}

# The draft has habits where the target is at home in every wording, and sees some plans rarely. It mostly writes an
# equation before it says what for: forms that name the operation first would make a choice of words a choice of what
# is computed.
STYLES = {
    "target": TARGET_STYLE,
    "draft": Style(habit=-3.2, plan_habit=-0.7, forms=(1.0, 5.0, 1.0, 3.0, 0.3, 0.3)),
}


def training_examples(mix: Mapping[str, float], style: Style, seed: str) -> Iterator[Example]:
    """Yield training examples without end, families drawn by the weights of `mix`; a seed fixes the stream."""
    rng = random.Random(seed)
    names, weights = list(mix), list(mix.values())
    while True:
        example = FAMILIES[rng.choices(names, weights)[0]](rng, style)
        if not is_held_out(example.key):
            yield example
