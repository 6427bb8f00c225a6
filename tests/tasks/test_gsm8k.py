"""GSM8K: the number of a completion, and scores beside those of lm-eval, which compares text."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import math_verify.parser
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.tasks import get_task
from hf_diversed.tasks.gsm8k import final_number, whole_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # marked
        ("2 + 2 = 4\n#### 4", "4"),
        ("#### 1,234", "1234"),
        ("#### -3", "-3"),
        ("#### **18**", "18"),
        ("#### 18\n\n#### 20", "18"),
        ("#### Step 1\nWe add.\nSo it is 12 in all.", "12"),
        # boxed
        (r"so \boxed{42}", "42"),
        (r"The answer is 7, I mean \boxed{8}.", "8"),
        (r"\boxed{\$1{,}200}", "1200"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{12\text{ apples}}", "12"),
        (r"Fill in \boxed{}. The answer is 9.", "9"),
        (r"\boxed{none}, though 3 came", None),
        (r"\boxed{\text{Answer: }18}", "18"),
        (r"\boxed{\frac{1}{2}}", "1/2"),
        (r"\boxed{\frac{1}{0}}", None),
        (r"\boxed{9^{9^{9}}}", None),
        (rf"\boxed{{{'1+' * 500}1}}", "1"),
        # stated
        ("The answer is 72.", "72"),
        ("The final answer is **72**, from 3 parts.", "72"),
        ("**Answer:** 72\n\nHope that helps with all 5!", "72"),
        ("The answer is 3 + 4 = 7.", "7"),
        ("The answer is 5. No, the answer is 6. Done in 2 steps.", "6"),
        ("The answer is \N{MINUS SIGN}5.", "-5"),
        ("24 right, 2 points/answer = 48 points.\nWith the bonus that is 64", "64"),
        ("#### 1. **Eggs left**\n16 - 7 = 9\nThe answer is 18.", "18"),
        ("To answer the question: 16 - 7 = 9 are left.\nThat makes 9 * 2 = 18.", "18"),
        # last number
        ("He has 3 and buys 4, so 7", "7"),
        ("That makes 50%.", "50"),
        ("about 3/4", "3/4"),
        ("5/0", None),
        ("no number", None),
    ],
)
def test_reads_the_answer(text: str, expected: str | None):
    """Catches a convention that is missed, read in the wrong order, or swallows a sign, a separator or a period."""
    assert final_number(text) == (None if expected is None else Fraction(expected))


def test_boxes_are_read_in_other_threads(monkeypatch, caplog):
    """Catches a time limit that needs the main thread, and a warning of math-verify about its absence."""
    monkeypatch.setattr(math_verify.parser, "TIMEOUT_WARNING_SHOWN", False)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(final_number, r"\boxed{\frac{3}{4}}").result() == Fraction(3, 4)
    assert not caplog.records


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_reads_what_it_writes(whole: int, cents: int):
    """Catches a separator, a sign or decimals that are lost for some size of number."""
    value = Fraction(f"{whole}.{cents:02}")
    for text in (f"{whole:,}.{cents:02}", f"{whole}.{cents:02}"):
        assert whole_number(f" ${text}.") == value
        for completion in (f"#### {text}\n", f"3 of 4. The answer is ${text}.", f"\\boxed{{{text}}}", f"so {text}%"):
            assert final_number(completion) == value


def test_gsm8k_compares_numbers():
    """Catches numbers compared as text, the answer to a question that the model added, and a gold answer of None,
    which every completion without a number would match."""
    for completion, gold, score in (
        (" So 12.0 in all.", "12", 1.0),
        ("#### $1,000", "1,000", 1.0),
        ("#### 5", "-5", 0.0),
        (r"\boxed{\frac{4}{2}}", "2", 1.0),
        (" So 5.\n\nQuestion: And 7?\n\nAnswer: 8", "5", 1.0),
        ("", "5", 0.0),
    ):
        record = {"answer": f"Some <<1+1=2>>2 words.\n#### {gold}"}
        assert get_task("gsm8k").score(completion, record) == score
    with pytest.raises(ValueError, match=r"`answer` of task 'gsm8k' must end in '#### N', got"):
        get_task("gsm8k").score("none", {"answer": "#### 5 or 6"})


GOLD = "Each of 18 boxes holds 70, so 18 x 70 = <<18*70=1260>>1260.\n#### 1,260"
# Completions, and their scores by `strict-match`, by `flexible-extract`, and here.
SCORES = [
    ("18 x 70 = 1260.\n#### 1260", 1.0, 1.0, 1.0),
    ("18 x 70 = 1,260.\n#### 1,260", 1.0, 1.0, 1.0),
    ("#### 1261", 0.0, 0.0, 0.0),
    ("So I cannot tell.", 0.0, 0.0, 0.0),
    # Without a marker, `strict-match` finds nothing.
    ("That makes 1260 in all.", 0.0, 1.0, 1.0),
    ("The answer is $1,260.", 0.0, 1.0, 1.0),
    ("#### $1260", 0.0, 1.0, 1.0),  # strict-match needs the digits next to the marker
    ("#### 1260\n\nSee exercise 12", 1.0, 0.0, 1.0),  # flexible-extract uses the last number
    ("The answer is 1260, from 18 boxes", 0.0, 0.0, 1.0),  # the stated answer is not the last number
    ("The answer is 12. Or 1260", 0.0, 1.0, 0.0),
    (r"So \boxed{1260}, for 18 boxes", 0.0, 0.0, 1.0),  # the harness reads no boxes in this task
    ("It is 1260.0", 0.0, 0.0, 1.0),  # the harness compares text
]


@pytest.fixture(scope="module")
def harness():
    """The harness's configuration, filters and metric: the score of a completion by the name of a filter."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    task = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml").read_text())
    settings = {
        name: task["metric_list"][0][name] for name in ("regexes_to_ignore", "ignore_case", "ignore_punctuation")
    }
    filters = {}
    for entry in task["filter_list"]:
        regex = {name: value for name, value in entry["filter"][0].items() if name != "function"}
        filters[entry["name"]] = RegexFilter(**regex)

    def score(name: str, completion: str) -> float:
        ((found,),) = filters[name].apply([[completion]], [{}])
        return float(exact_match_hf_evaluate([found], [GOLD], **settings)["exact_match"])

    return score


@pytest.mark.parametrize(("completion", "strict", "flexible", "expected"), SCORES)
def test_scores_beside_those_of_the_harness(harness, completion, strict, flexible, expected):
    """Catches scores that cannot be compared with published ones, except for the differences listed above."""
    assert (harness("strict-match", completion), harness("flexible-extract", completion)) == (strict, flexible)
    assert get_task("gsm8k").score(completion, {"answer": GOLD}) == expected
