"""Extraction of the final number of an answer as an exact fraction. Text is matched, never evaluated."""

import logging
import re
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec


_LONGEST_NUMBER = 100  # Python refuses integers of thousands of digits, which a looping model can write
_LONGEST_EXPRESSION = 80
_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![.\d])\.\d+"
_NUMBER = re.compile(rf"(?P<sign>(?<![\w)-])-)?(?P<top>{_UNSIGNED})(?:/(?P<bottom>{_UNSIGNED}))?", re.ASCII)
# "#### 2. Add both" is a heading.
_MARKED = re.compile(r"####[ \t*]*(?!\d{1,2}[.)][ \t]+[*_]*[A-Za-z])(?=[-.\d\\])([^\n]*)")
# "2 points/answer = 48", "2 points per answer = 48" and "To answer the question:" do not state an answer.
_STATED = re.compile(r"(?<!/)(?<!\bper )(?<!\bto )\banswer\b[^.\n]{0,40}?(?:\bis\b|:|=)(?=([^\n]*))", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}(?:\^\{?\d\}?)?")  # also m^2
_ARITHMETIC = re.compile(
    r"(?:\\(?:frac|dfrac|tfrac|cdot|times|div|left|right)(?![A-Za-z])|[\d\s.+*/(){}-])+", re.ASCII
)
_BEYOND_ARITHMETIC = re.compile(r"[\\^_!]")

logger = logging.getLogger(__name__)


def extract_number(text: str) -> Fraction | None:
    r"""Return the number that a completion gives as its answer, or None.

    In this order: the first line marked `#### x`, the last `\boxed{x}` that is not empty, the last `answer is x` or
    `answer: x`, the last number. Thousands separators, currency and percent signs, trailing periods and LaTeX spacing
    are ignored. For an equation, the right-hand side is used. A box without a number gives None.
    """
    text = _normalise(text)
    for statement in _MARKED.findall(text):
        if (number := _of_statement(statement)) is not None:
            return number
    if box := _last_box(text).strip():
        return _of_box(box)
    for statement in reversed(_STATED.findall(text)):
        if (number := _of_statement(_SENTENCE_END.split(statement, maxsplit=1)[0])) is not None:
            return number
    matches = list(_NUMBER.finditer(text))
    return _value(matches[-1]) if matches else None


def parse_number(text: str) -> Fraction | None:
    """Return the number that a text consists of, or None."""
    match = _NUMBER.fullmatch(_normalise(text).strip().rstrip("."))
    return _value(match) if match else None


def _normalise(text: str) -> str:
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\%", "").replace("%", "")
    text = re.sub(r"\\(?:[: ]|q?quad\b)", " ", re.sub(r"\\[!,;]", "", text)).replace("\\$", "$")
    return text.replace("-$", "-").replace("$", " ")


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _LONGEST_NUMBER:
        return None
    top, bottom = (Fraction(part.replace(",", "")) for part in (match["top"], match["bottom"] or "1"))
    if bottom == 0:
        return None
    return -top / bottom if match["sign"] else top / bottom


def _of_statement(statement: str) -> Fraction | None:
    match = _NUMBER.search(statement.rpartition("=")[2])
    return _value(match) if match else None


def _last_box(text: str) -> str:
    """Return the content of the last `\\boxed{}`, with paired braces, or up to the end of a truncated completion."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth, begin = 0, start + len("\\boxed{")
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth < 0:
            return text[begin:position]
    return text[begin:]


def _of_box(box: str) -> Fraction | None:
    content = _WORDS.sub(r" \1 ", box).rpartition("=")[2].strip()
    if (number := parse_number(content)) is not None:
        return number
    if len(content) <= _LONGEST_EXPRESSION and _ARITHMETIC.fullmatch(content):
        return _of_expression(content)
    return None if _BEYOND_ARITHMETIC.search(content) else _of_statement(content)


def _of_expression(latex: str) -> Fraction | None:
    r"""Compute short arithmetic such as `\frac{3}{4}` or `2 \times 6` with math-verify, which parses LaTeX.

    Only fractions and the four operations reach this function, so a short expression cannot take long, and
    math-verify's timeouts, which need signals and the main thread, are disabled.
    """
    if find_spec("math_verify") is None:
        warn_once("math-verify is not installed, so answers such as \\boxed{\\frac{1}{2}} count as wrong; "
                  "install hf-diversed[train].")  # fmt: skip
        return None
    import math_verify
    import sympy

    logging.getLogger("math_verify.parser").addFilter(_without_timeout_warnings)
    parsed = math_verify.parse(f"${latex}$", parsing_timeout=None)
    if not parsed or not isinstance(parsed[0], sympy.Expr):
        return None
    value = sympy.nsimplify(parsed[0].doit(), rational=True)
    return Fraction(int(value.p), int(value.q)) if isinstance(value, sympy.Rational) else None


def _without_timeout_warnings(record: logging.LogRecord) -> bool:
    return "parsing_timeout" not in str(record.msg)


@lru_cache(maxsize=1)
def warn_once(message: str) -> None:
    logger.warning(message)
