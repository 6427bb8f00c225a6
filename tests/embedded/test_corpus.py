"""The training text: nothing held out in it, right sums, and for a seed always the same words."""

import hashlib
import random
import re
from dataclasses import astuple
from itertools import islice

import pytest

from embedded import drills
from embedded.corpus import FAMILIES, STYLES, training_examples
from embedded.recipe import Recipe
from embedded.stream import chunk_examples
from hf_diversed.corpus import held_out_examples, is_held_out
from hf_diversed.tasks import get_task


EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
DIGESTS = {
    "math": ["7dc842d9205447e7", "e01e5d5ed88648b4", "fa5df23b70cd7294", "ff334aa92d977884"],
    "summary": ["877b6eddfc52db08", "91eab4c90be0c178", "c88f813c4d034446", "9fc92c4621784de7"],
    "code": ["7fc8ec2a2c1387aa", "c1ecb664da77de6d", "5e5e8cd5b37b7800", "cd0623f4caa865e4"],
}
TRAINING_DIGESTS = {"target": "4210f186e4d259af", "draft": "29011eaf954ff923"}


def digest(value: list) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


@pytest.mark.parametrize("style", STYLES)
def test_training_never_yields_a_held_out_key(style):
    stream = training_examples(dict.fromkeys(FAMILIES, 1.0), STYLES[style], "test")
    assert not any(is_held_out(example.key) for example in islice(stream, 1000))


def test_drills_hold():
    """Catches a drill that teaches wrong sums."""
    rng = random.Random(3)
    for _ in range(200):
        example = drills.sample(rng, STYLES["target"])
        equations = EQUATION.findall(example.prompt + example.completion)
        assert len(equations) == 12
        for left, operator, right, result in equations:
            a, b, c = int(left), int(right), int(result)
            assert {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b * c == a}[operator], example


@pytest.mark.parametrize("name", DIGESTS)
def test_prompts_are_those_of_the_committed_results(name):
    """Catches a change to the task families that gives a seed other prompts than results and heads were made with."""
    drawn = [get_task(name).draw(split, 200, 1) for split in ("train", "validation", "test")]
    held_out = [astuple(example) for example in held_out_examples(name, 200, 3)]
    found = [digest(held_out), *(digest([sorted(record.items()) for record in records]) for records in drawn)]
    assert found == DIGESTS[name]


@pytest.mark.parametrize("role", TRAINING_DIGESTS)
def test_training_text_is_that_of_the_packaged_weights(role):
    """Catches a recipe that does not give the packaged weights any more: other text under the same seed."""
    assert digest([astuple(example) for example in chunk_examples(Recipe(), role, 2)]) == TRAINING_DIGESTS[role]
