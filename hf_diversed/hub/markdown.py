"""Escaping of names and records in a card, so that none of them becomes markup or code.

A card is a template with `autoescape`: every value passes through `text` unless a function here returned `Markup`.
"""

import html
import json
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup


_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # line breaks and control characters
_MARKS = re.compile(r"[\\`\[\]|*#~]")
_PLAIN = re.compile(r"[\w .,:/+@=()-]+")


def text(value: Any) -> Markup:
    """Return a value escaped for text and tables, on one line; `Markup` unchanged."""
    if isinstance(value, Markup):
        return value
    return Markup(_MARKS.sub(r"\\\g<0>", html.escape(one_line(value), quote=False)))


def code(value: Any) -> Markup:
    """Return a name in backticks, or as text if it contains characters that could end them."""
    return Markup(f"`{value}`") if _PLAIN.fullmatch(str(value)) else text(value)


def python(value: Any) -> Markup:
    """Return the Python literal of a value, without characters that could end the code block."""
    literal = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return Markup(literal.replace("`", r"\u0060").replace("<", r"\u003c"))


def one_line(value: Any) -> str:
    """Return a value without line breaks, so that it cannot start a fence, list or heading."""
    return _BREAKS.sub(" ", str(value))


def render(template: Path, **values: Any) -> str:
    """Render a template, whose filters are `text`, `code` and `python`."""
    environment = jinja2.Environment(autoescape=True, finalize=text)
    environment.filters |= {"text": text, "code": code, "python": python}
    return environment.from_string(template.read_text(encoding="utf-8")).render(**values)
