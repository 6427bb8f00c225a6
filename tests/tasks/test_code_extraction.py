"""The program inside a completion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.tasks.code import STOP_POINTS, HumanEval, extract_code


CODE = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    "completion",
    [
        CODE,
        f"```python\n{CODE}```",
        f"```python\r\n{CODE}```\r\nDone.",
        f"```py\n{CODE}",
        f"Here is it:\n\n```python\n{CODE}```\nIt returns x.\n```python\nprint(f(1))\n```",
        f"{CODE}```\nThis closes what the prompt had opened.\n```python\n1/0\n```",
        f"# Returns x.\n\n{CODE}```\nThis works.",
        f"```python\n{CODE}if __name__ == '__main__':\n    f(input())\n```",
        *(f"{CODE}{stop} rest\nof it" for stop in STOP_POINTS),
    ],
)
def test_finds_the_code(completion: str):
    """Catches prose in a program, later blocks of a model that continues, and the model's own calls after the code."""
    assert extract_code(completion).replace("# Returns x.\n\n", "") == CODE


@pytest.mark.parametrize("after", ["This returns x.", "def g():\n    pass", "```"])
def test_a_body_ends_at_the_next_line_without_indentation(after: str):
    """Catches a right body that fails because of the text after it."""
    body, record = "    y = [\n        x,\n\n    ]\n    return x\n\n", {"prompt": "def f(x):\n"}
    assert HumanEval().program(f"{body}{after}", record) == f"def f(x):\n{body}"


@pytest.mark.parametrize(
    "start", ["    return x\n", "\treturn x\n", "import re\n", "from a.b import c\n", "R = 3\n", '"""x"""\n']
)
def test_text_that_begins_as_code_is_code(start: str):
    """Catches a function body that is dropped in favour of a later fenced block."""
    assert extract_code(f"{start}\n\nNow a test:\n```python\n1/0\n```") == f"{start}\n\nNow a test:\n"


@pytest.mark.parametrize(
    "start", ["# Solution", "from here on we do this:", "if x == 3, then:", "Import this:", "define f:"]
)
def test_prose_that_looks_like_code_is_prose(start: str):
    """Catches an answer that is dropped because the sentence before it begins with a keyword."""
    assert extract_code(f"{start}\n```python\n{CODE}```") == CODE


@pytest.mark.parametrize("stop", ["print(", "assert ", "Write a Python function to solve"])
def test_a_stop_string_in_an_open_fence_is_not_code(stop: str):
    """Catches a right answer that fails because decoding stopped within its fenced block."""
    assert extract_code(f"```python\nprint(1)\n{CODE}\n{stop}") == f"print(1)\n{CODE}\n"


def test_stop_points_count_at_the_margin_only():
    """Catches a function that is cut at an indented print or assertion."""
    code = "def f(x):\n    print(x)\n    assert x\n    return 'Question:'\n"
    assert extract_code(code) == code
    assert extract_code(f"```python\nprint(1)\nassert True\n{CODE}```") == f"print(1)\nassert True\n{CODE}"
    assert extract_code("print(1)") == ""


@given(st.text(alphabet="`\n\rdef x():if __name_print", max_size=60))
def test_any_text_gives_a_piece_of_it(text: str):
    """Catches invented code, and an error for the text of an untrained model."""
    code = extract_code(text)
    assert code in text.replace("\r\n", "\n").replace("\r", "\n")
    assert "\r" not in code
