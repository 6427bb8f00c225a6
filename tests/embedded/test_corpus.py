"""The corpus: equal seeds give equal text, splits are disjoint, and references are right."""

import hashlib
import random
import re
from dataclasses import astuple
from itertools import islice

import pytest

from embedded.corpus import FAMILIES, STYLES, is_held_out, training_examples
from embedded.recipe import Recipe
from embedded.records import TASKS, draw, draw_records, split_of
from embedded.stream import chunk_examples
from hf_diversed.tasks import get_task, load_records
from hf_diversed.tasks.embedded import SEEDS


EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
CONSTANTS = {"half": 2, "five": 5, "all four sides": 2, "around it": 2}  # numbers that a question spells out
TRAINING_DIGESTS = {"target": "4210f186e4d259af", "draft": "29011eaf954ff923"}


def digest(value: list) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def math_examples(style: str, count: int, seed: str = "test") -> list:
    return list(islice(training_examples({"math": 1.0}, STYLES[style], seed), count))


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_disjoint(name: str):
    """Catches held-out records in training, and test records that choose the best head."""
    keys = {split: {example.key for example in draw(name, split, 60, 0)} for split in SEEDS}
    assert not any(map(is_held_out, keys["train"]))
    assert all(map(is_held_out, keys["validation"] | keys["test"]))
    for split in SEEDS:
        assert {split_of(key) for key in keys[split]} == {split}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("split", SEEDS)
def test_packaged_records_are_drawn_ones(name: str, split: str):
    """Catches packaged records that differ from those of the committed results."""
    assert load_records(get_task(name), split, 40, SEEDS[split]) == draw_records(name, split, 40, SEEDS[split])


@pytest.mark.parametrize("role", TRAINING_DIGESTS)
def test_training_text_is_that_of_the_packaged_weights(role):
    """Catches a recipe that no longer reproduces the packaged weights, because the text of its seed changed."""
    assert digest([astuple(example) for example in chunk_examples(Recipe(), role, 2)]) == TRAINING_DIGESTS[role]


@pytest.mark.parametrize("style", STYLES)
def test_equations_are_true_and_lead_from_the_question_to_the_answer(style):
    """Every equation is correct and uses only numbers known before it; the last one gives the answer."""
    for example in math_examples(style, 400):
        known = {int(number) for number in re.findall(r"\d+", example.prompt)}
        known |= {value for words, value in CONSTANTS.items() if words in example.prompt}
        equations = EQUATION.findall(example.completion)
        assert len(equations) >= 2
        for left, operator, right, result in equations:
            assert {int(left), int(right)} <= known, example
            a, b, c = int(left), int(right), int(result)
            assert {"+": a + b == c, "-": a - b == c, "*": a * b == c, "/": b * c == a}[operator], example
            known.add(int(result))
        assert example.completion.endswith(f"The answer is {equations[-1][3]}.")


@pytest.mark.parametrize("style", STYLES)
def test_functions_pass_their_tests(style):
    """Catches a description, a function and tests that differ, such as in a constant or a filter."""
    rng = random.Random(4)
    for _ in range(300):
        example = FAMILIES["code"](rng, STYLES[style])
        names: dict = {}
        exec(example.completion + example.answer, names)  # written by the corpus, not by a model
        for number in re.findall(r"/(\d+)", example.key):
            assert number in example.prompt
            assert number in example.completion
    wrong = example.completion.replace("return", "return 0 and")
    with pytest.raises(AssertionError):
        exec(wrong + example.answer, {})
