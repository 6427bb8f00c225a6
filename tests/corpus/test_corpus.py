"""The corpus: deterministic, split cleanly, and right about its own arithmetic."""

import random
import re
from itertools import islice

import pytest

from embedded.corpus import STYLES, training_examples
from hf_diversed.corpus import FAMILIES, held_out_examples, is_held_out
from hf_diversed.corpus.math_plans import PLANS
from hf_diversed.corpus.summary import STORIES
from hf_diversed.corpus.wording import Style, pick, write


EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
CONSTANTS = {"half": 2, "five": 5, "all four sides": 2, "around it": 2}  # numbers that a question says in words


def math_examples(style: str, count: int, seed: str = "test") -> list:
    return list(islice(training_examples({"math": 1.0}, STYLES[style], seed), count))


@pytest.mark.parametrize("style", STYLES)
def test_a_seed_fixes_the_stream(style):
    assert math_examples(style, 50) == math_examples(style, 50)
    assert math_examples(style, 50) != math_examples(style, 50, seed="other")
    assert held_out_examples("math", 20, seed=1) == held_out_examples("math", 20, seed=1)


def test_held_out_examples_are_held_out_and_distinct():
    keys = [example.key for example in held_out_examples("math", 40, seed=0)]
    assert all(is_held_out(key) for key in keys)
    assert len(set(keys)) == 40


def test_the_key_is_blind_to_wording():
    """Catches a split that puts one problem on one side and its paraphrase on the other."""
    keys = [FAMILIES["math"](random.Random(5), Style()).key for _ in range(2)]
    assert keys[0] == keys[1]
    name, *rest = keys[0].split("/")
    assert name == "math"
    assert len(rest) >= 7  # plan, two operands or more, five entities


def test_at_least_forty_plans_and_all_are_drawn():
    assert len({plan.name for plan in PLANS}) == len(PLANS) >= 40
    drawn = {example.key.split("/")[1] for style in STYLES for example in math_examples(style, 400)}
    assert drawn == {plan.name for plan in PLANS}


@pytest.mark.parametrize("style", STYLES)
def test_equations_are_true_and_lead_from_the_question_to_the_answer(style):
    """Every equation holds and uses numbers known by then only; the last one gives the answer."""
    for example in math_examples(style, 400):
        known = {int(number) for number in re.findall(r"\d+", example.prompt)}
        known |= {value for words, value in CONSTANTS.items() if words in example.prompt}
        equations = EQUATION.findall(example.completion)
        assert len(equations) >= 2
        for left, operator, right, result in equations:
            assert {int(left), int(right)} <= known, example
            assert {
                "+": int(left) + int(right) == int(result),
                "-": int(left) - int(right) == int(result),
                "*": int(left) * int(right) == int(result),
                "/": int(right) * int(result) == int(left),
            }[operator], example
            known.add(int(result))
        assert example.completion.endswith(f"The answer is {equations[-1][3]}.")


def test_habits_decide_which_words_are_frequent():
    """With 4000 draws a share is off by 0.05 with probability below 1e-9 (Hoeffding: 2 exp(-20))."""
    rng = random.Random(0)
    for habit in (-0.9, 0.0, 0.9):
        share = sum(pick(rng, 2, habit) == 0 for _ in range(4000)) / 4000
        assert share == pytest.approx(1 / (1 + 2.718281828**-habit), abs=0.05)


def test_templates_nest_and_refuse_loose_brackets():
    texts = {write("(a|b (c|$d)|)", {"d": "(x|y)"}, random.Random(seed), Style()) for seed in range(60)}
    assert texts == {"a", "b c", "b x", "b y", ""}
    for wrong in ("(a|b", "(a))", "(a)|b"):
        with pytest.raises(ValueError, match="unbalanced"):
            write(wrong, {}, random.Random(0), Style())


@pytest.mark.parametrize("style", STYLES)
def test_functions_pass_their_tests(style):
    """Catches a description, a function and tests that speak of different things: another constant, another filter."""
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


@pytest.mark.parametrize("style", STYLES)
def test_summaries_say_what_the_articles_say(style):
    """Catches a summary with a name, a number, a day or a place that its article does not have."""
    rng = random.Random(5)
    for _ in range(300):
        example = FAMILIES["summary"](rng, STYLES[style])
        assert example.completion == f" {example.answer}"
        facts = re.findall(r"\d+|\b[A-Z][a-z]+", example.answer.split(" ", 1)[1])
        assert all(fact in example.prompt for fact in facts), example
        assert 5 <= example.prompt.count(".") <= 6


@pytest.mark.parametrize("family", ["summary", "code"])
def test_every_kind_is_drawn(family):
    rng = random.Random(6)
    kinds = {FAMILIES[family](rng, STYLES["draft"]).key.split("/")[1] for _ in range(400)}
    assert len(kinds) == {"summary": len(STORIES), "code": 16}[family]
