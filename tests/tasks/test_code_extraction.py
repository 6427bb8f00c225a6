"""The program inside a completion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.tasks.code import STOP_POINTS, HumanEval, extract_code


CODE = "def f(x):\n    return x\n"


AS_CODE = ("    return x\n", "\treturn x\n", "import re\n", "from a.b import c\n", "R = 3\n", '"""x"""\n')
AS_PROSE = ("# Solution", "from here on we do this:", "if x == 3, then:", "Import this:", "define f:")
INDENTED = "def f(x):\n    print(x)\n    assert x\n    return 'Question:'\n"
CASES = [
    (CODE, CODE),
    (f"```python\n{CODE}```", CODE),
    (f"```python\r\n{CODE}```\r\nDone.", CODE),
    (f"```py\n{CODE}", CODE),
    (f"Here is it:\n\n```python\n{CODE}```\nIt returns x.\n```python\nprint(f(1))\n```", CODE),
    (f"{CODE}```\nThis closes what the prompt had opened.\n```python\n1/0\n```", CODE),
    (f"# Returns x.\n\n{CODE}```\nThis works.", f"# Returns x.\n\n{CODE}"),
    (f"```python\n{CODE}if __name__ == '__main__':\n    f(input())\n```", CODE),
    *((f"{CODE}{stop} rest\nof it", CODE) for stop in STOP_POINTS),
    # A first line of code is code, although a fenced block follows; a first line of prose is not.
    *((f"{start}\n\nNow a test:\n```python\n1/0\n```", f"{start}\n\nNow a test:\n") for start in AS_CODE),
    *((f"{start}\n```python\n{CODE}```", CODE) for start in AS_PROSE),
    # Decoding can stop within a fenced block; indented or within a closed block, a stop point is code.
    *(
        (f"```python\nprint(1)\n{CODE}\n{stop}", f"print(1)\n{CODE}\n")
        for stop in ("print(", "assert ", "Write a Python")
    ),
    (INDENTED, INDENTED),
    (f"```python\nprint(1)\nassert True\n{CODE}```", f"print(1)\nassert True\n{CODE}"),
    ("print(1)", ""),
]


@pytest.mark.parametrize(("completion", "code"), CASES)
def test_finds_the_code(completion: str, code: str):
    """Catches prose in a program, later blocks of a model that continues, the model's own calls after the code, and a
    right answer that is cut, or dropped because a sentence before it begins with a keyword."""
    assert extract_code(completion) == code


@pytest.mark.parametrize("after", ["This returns x.", "def g():\n    pass", "```"])
def test_a_body_ends_at_the_next_line_without_indentation(after: str):
    """Catches a right body that fails because of the text after it."""
    body, record = "    y = [\n        x,\n\n    ]\n    return x\n\n", {"prompt": "def f(x):\n"}
    assert HumanEval().program(f"{body}{after}", record) == f"def f(x):\n{body}"


@given(st.text(alphabet="`\n\rdef x():if __name_print", max_size=60))
def test_any_text_gives_a_piece_of_it(text: str):
    """Catches invented code, and an error for the text of an untrained model."""
    code = extract_code(text)
    assert code in text.replace("\r\n", "\n").replace("\r", "\n")
    assert "\r" not in code
