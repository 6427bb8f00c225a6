"""Other people's words in a card: nothing in a name or a record becomes markup, or code that a reader would run.

A card is a template with `autoescape`: what it fills in is `text` unless a function here has made it `Markup`.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup


_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # of lines, and what no reader sees
_MARKS = re.compile(r"[\\`\[\]|*#~]")
_PLAIN = re.compile(r"[\w .,:/+@=()-]+")


def text(value: Any) -> Markup:
    """Return a value as it reads in running text and in tables, on one line; `Markup` as it is."""
    if isinstance(value, Markup):
        return value
    return Markup(_MARKS.sub(r"\\\g<0>", html.escape(one_line(value))))


def code(value: Any) -> Markup:
    """Return a name in backticks; one that could leave them as text."""
    return Markup(f"`{value}`") if _PLAIN.fullmatch(str(value)) else text(value)


def python(value: Any) -> Markup:
    """Return the literal that stands for a value in a block of Python, without what could end the block."""
    literal = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return Markup(literal.replace("`", r"\u0060").replace("<", r"\u003c"))


def one_line(value: Any) -> str:
    """Return a value without line breaks, for where the lines' beginnings mean something: fences, lists, headings."""
    return _BREAKS.sub(" ", str(value))


def render(template: Path, **values: Any) -> str:
    """Fill a template in; its filters are `text`, `code` and `python`."""
    environment = jinja2.Environment(autoescape=True, finalize=text)
    environment.filters |= {"text": text, "code": code, "python": python}
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
