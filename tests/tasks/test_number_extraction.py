"""Extraction of the number of a completion, by convention."""

import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.tasks import number_extraction
from hf_diversed.tasks.number_extraction import extract_number, parse_number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # marked
        ("2 + 2 = 4\n#### 4", "4"),
        ("#### 1,234", "1234"),
        ("#### $1,234,567.50.", "1234567.5"),
        ("#### -3", "-3"),
        ("#### -$3", "-3"),
        ("#### $-3", "-3"),
        ("#### **18**", "18"),
        ("#### 18 apples for 3 children", "18"),
        ("#### 3*6 = 18", "18"),
        ("#### 18\n\n#### 20", "18"),
        ("#### 18\nThe answer is 20.", "18"),
        ("#### Step 1\nWe add.\nSo it is 12 in all.", "12"),
        # boxed
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"\boxed{42} because 3 of them", "42"),
        (r"The answer is 7, I mean \boxed{8}.", "8"),
        (r"\boxed{\$1{,}200}", "1200"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{12\text{ apples}}", "12"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{12 apples}", "12"),
        (r"\boxed{3/4}", "3/4"),
        (r"\boxed{42", "42"),
        (r"Fill in \boxed{}. The answer is 9.", "9"),
        (r"\boxed{none}, though 3 came", None),
        (r"\boxed{18\ \text{dollars}}", "18"),
        (r"\boxed{18\quad}", "18"),
        (r"\boxed{200 \text{ m}^2}", "200"),
        # stated
        ("The answer is 72.", "72"),
        ("The answer is $72.50 for 3 of them", "72.5"),
        ("The final answer is **72**, from 3 parts.", "72"),
        ("**Answer:** 72\n\nHope that helps with all 5!", "72"),
        ("The answer is 3 + 4 = 7.", "7"),
        ("The answer is 72. It took 5 steps.", "72"),
        ("The answer is 5. No, the answer is 6. Done in 2 steps.", "6"),
        ("The answer is clear.\nHe has 4 left.", "4"),
        ("The answer is \N{MINUS SIGN}5.", "-5"),
        ("24 right, 2 points/answer = 48 points.\nWith the bonus that is 64", "64"),
        ("#### 1. **Eggs left**\n16 - 7 = 9\nThe answer is 18.", "18"),
        ("To answer the question: 16 - 7 = 9 are left.\nThat makes 9 * 2 = 18.", "18"),
        ("#### 1. Count the eggs\nIt is \\boxed{18}", "18"),
        # last number
        ("He has 3 and buys 4, so 7", "7"),
        ("That makes 50%.", "50"),
        ("Total: 12.0", "12"),
        ("That is .5 of it", "1/2"),
        ("10-5", "5"),
        ("f(2)-3", "3"),
        ("it fell to -5", "-5"),
        ("1,2,3", "3"),
        ("about 3/4", "3/4"),
        ("5/0", None),
        ("no number", None),
        ("", None),
    ],
)
def test_reads_the_answer(text: str, expected: str | None):
    """Catches a convention that is missed, read in the wrong order, or swallows a sign, a separator or a period."""
    assert extract_number(text) == (None if expected is None else Fraction(expected))


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (r"\frac{1}{2}", "1/2"),
        (r"\dfrac{10}{4}", "5/2"),
        (r"2\frac{1}{2}", "5/2"),
        (r"3 \times 4", "12"),
        (r"2 \cdot 1.5", "3"),
        (r"x = \frac{6}{3}", "2"),
        (r"\frac{1}{0}", None),
        (r"9^{9^{9}}", None),
        (r"\sqrt{16}", None),
        (r"\binom{9}{4}", None),
        (r"5!", None),
        ("1+" * 500 + "1", "1"),
    ],
)
def test_computes_short_arithmetic_only(box: str, expected: str | None):
    """Catches the numerator used as the answer, and expressions that take a computer algebra system too long."""
    assert extract_number(rf"It is \boxed{{{box}}}.") == (None if expected is None else Fraction(expected))


def test_one_warning_without_math_verify(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Catches a run that fails, or different scores without a warning, without the optional package."""
    monkeypatch.setattr(number_extraction, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    number_extraction.warn_once.cache_clear()
    assert [extract_number(rf"3 or \boxed{{\frac{{1}}{{{n}}}}}") for n in (2, 3)] == [None, None]
    assert extract_number(r"\boxed{3}") == 3
    assert [record.message for record in caplog.records if "math-verify is not installed" in record.message] == [
        caplog.records[0].message
    ]


def test_survives_a_looping_model():
    """Catches Python's limit on the digits of an integer, which would end a training run."""
    assert extract_number("9" * 10_000) is None
    assert extract_number("#### " + "9" * 10_000) is None
    assert extract_number("\\boxed{" * 2_000) is None
    assert extract_number("1," * 5_000) == 1


@given(st.integers(-(10**12), 10**12), st.integers(0, 99))
def test_reads_what_it_writes(whole: int, cents: int):
    """Catches a separator, a sign or decimals that are lost for some size of number."""
    value = Fraction(f"{whole}.{cents:02}")
    for text in (f"{whole:,}.{cents:02}", f"{whole}.{cents:02}"):
        assert parse_number(f" ${text}.") == value
        for completion in (f"#### {text}\n", f"3 of 4. The answer is ${text}.", f"\\boxed{{{text}}}", f"so {text}%"):
            assert extract_number(completion) == value


@given(st.text(alphabet="0123456789.,-/$%#= \\boxed{}answer is:\n", max_size=60))
def test_any_text_gives_a_number_or_none(text: str):
    """Catches an error for the text of an untrained model."""
    assert extract_number(text) is None or isinstance(extract_number(text), Fraction)


@pytest.mark.parametrize("text", ["", "12 apples", "1 2", "x", "1,23"])
def test_parse_takes_a_number_and_nothing_else(text: str):
    """Catches a gold answer with two numbers of which one is used."""
    assert parse_number(text) is None
