"""GSM8K: grade-school word problems, scored by the final number. Text is matched, never evaluated as code."""

import logging
import re
import threading
from fractions import Fraction

from hf_diversed.tasks.base import HubSource, Record, Task


_CALCULATOR_NOTE = re.compile(r"<<[^<>]*>>")
_LONGEST_NUMBER = 100  # Python refuses integers of thousands of digits, which a looping model can write
_LONGEST_BOX = 100
_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![.\d])\.\d+"
_NUMBER = re.compile(rf"(?P<sign>(?<![\w)-])-)?(?P<top>{_UNSIGNED})(?:/(?P<bottom>{_UNSIGNED}))?", re.ASCII)
# "#### 2. Add both" is a heading.
_MARKED = re.compile(r"####[ \t*]*(?!\d{1,2}[.)][ \t]+[*_]*[A-Za-z])(?=[-.\d\\])([^\n]*)")
# "2 points/answer = 48", "2 points per answer = 48" and "To answer the question:" do not state an answer.
_STATED = re.compile(r"(?<!/)(?<!\bper )(?<!\bto )\banswer\b[^.\n]{0,40}?(?:\bis\b|:|=)(?=([^\n]*))", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_BOX = r"\boxed{"
_ARITHMETIC = re.compile(r"(?:[\d\s.+/()-]|\*(?!\*))+", re.ASCII)  # without powers
_BOX_IN_WORDS = re.compile(r"[^{}\\^_!]*(?=}|\Z)")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\{([^{}]*)\}")
logging.getLogger("math_verify.parser").setLevel(logging.ERROR)  # it warns where there is no time limit


class Gsm8k(Task):
    """Columns `question` and `answer`; an answer ends in `#### N`."""

    name = "gsm8k"
    metric = "accuracy"
    source = HubSource("openai/gsm8k", "main")
    splits = ("train", "test")
    columns = ("question", "answer")
    score_columns = ("answer",)
    scorer_modules = ("math_verify",)
    max_new_tokens = 256
    stop_strings = ("\nQuestion:",)

    def prompt(self, record: Record) -> str:
        return f"Question: {record['question']}\n\nAnswer:"

    def reference(self, record: Record) -> str:
        """Return the written-out answer without its calculator notes, such as `<<48/2=24>>`."""
        return " " + _CALCULATOR_NOTE.sub("", record["answer"]).strip()

    def chat_question(self, record: Record) -> str:
        """Return the question with instructions; without them, code models write programs or long derivations."""
        return f"{record['question']}\n\nThink briefly, in plain text without code. End with: The answer is N."

    def chat_answer(self, record: Record) -> str:
        worked, _, number = self.reference(record).rpartition("####")
        return f"{worked.strip()}\nThe answer is {number.strip()}."

    def score(self, completion: str, record: Record) -> float:
        """Return 1.0 if the completion's number (see `final_number`) equals the reference, else 0.0."""
        marker, gold = record["answer"].rpartition("####")[1:]
        expected = whole_number(gold)
        if not marker or expected is None:
            raise ValueError(f"`answer` of task 'gsm8k' must end in '#### N', got {record['answer'][-60:]!r}.")
        return float(final_number(self.trim(completion)) == expected)


def final_number(text: str) -> Fraction | None:
    r"""Return the number that a completion gives as its answer, or None.

    In this order: the first line marked `#### x`; the last `\boxed{x}`, unless it is empty; the last `answer is x` or
    `answer: x`; the last number. Thousands separators, currency and percent signs and trailing periods are ignored.
    For an equation, the right-hand side is used. A box without a number gives None.
    """
    text = _normalize(text)
    for statement in _MARKED.findall(text):
        if (number := _first_number(statement)) is not None:
            return number
    _, box, rest = text.rpartition(_BOX)
    if box and not rest.lstrip().startswith("}"):
        return _boxed_number(rest)
    for statement in reversed(_STATED.findall(text)):
        if (number := _first_number(_SENTENCE_END.split(statement, maxsplit=1)[0])) is not None:
            return number
    matches = list(_NUMBER.finditer(text))
    return _value(matches[-1]) if matches else None


def whole_number(text: str) -> Fraction | None:
    """Return the number that a text consists of, or None."""
    match = _NUMBER.fullmatch(_normalize(text).strip().rstrip("."))
    return _value(match) if match else None


def _normalize(text: str) -> str:
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\%", "").replace("%", "")
    text = re.sub(r"\\(?:[: ]|q?quad\b)", " ", re.sub(r"\\[!,;]", "", text)).replace("\\$", "$")
    return text.replace("-$", "-").replace("$", " ")


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the number in a match of `_NUMBER`; None if it is too long or its denominator is 0."""
    if len(match[0]) > _LONGEST_NUMBER:
        return None
    top, bottom = (Fraction(part.replace(",", "")) for part in (match["top"], match["bottom"] or "1"))
    if bottom == 0:
        return None
    return -top / bottom if match["sign"] else top / bottom


def _first_number(statement: str) -> Fraction | None:
    """Return the first number of a statement, of its right-hand side if it is an equation."""
    match = _NUMBER.search(statement.rpartition("=")[2])
    return _value(match) if match else None


def _boxed_number(rest: str) -> Fraction | None:
    r"""Return the number in a box, from the text after `\boxed{`. Read by math-verify, else by `_first_number`."""
    import math_verify
    import sympy

    words = _BOX_IN_WORDS.match(_TEXT.sub(r"\1", rest))
    if words and ":" in words[0]:  # a time of day or "Answer: 18", which math-verify reads as a ratio or a product
        return _first_number(words[0])
    # math-verify's time limit works only in the main thread.
    limit = 5 if threading.current_thread() is threading.main_thread() else None
    latex = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]
    found = math_verify.parse(f"{_BOX}{rest[:_LONGEST_BOX]}", latex, "no_fallback", parsing_timeout=limit)
    value = found[0] if found else None
    value = value.rhs if isinstance(value, sympy.Eq) else value
    if (number := whole_number(str(value))) is not None:
        return number
    if isinstance(value, sympy.Expr) and _ARITHMETIC.fullmatch(str(value)):
        return whole_number(str(value.evalf()))
    return _first_number(words[0]) if words else None
