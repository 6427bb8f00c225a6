"""A griffe extension for the API page: one entry per attribute or argument where a docstring groups several.

Without it, "p, q: probabilities" is parsed as the attribute "p," of type "q".
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe


_SECTION = re.compile(r"^((?:Args|Attributes):\n)((?: +.*\n?)+)", re.MULTILINE)
_NAMES = r"`?\w+`?(?:, `?\w+`?)*"
_ENTRY = re.compile(rf"(?:^|(?<=[.;])\s+)({_NAMES}): ")


class OneEntryPerName(griffe.Extension):
    """Split grouped entries in the docstring of every object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            names = {parameter.name for parameter in getattr(obj, "parameters", ())} | set(obj.members)
            obj.docstring.value = split_entries(obj.docstring.value, names)


def split_entries(docstring: str, names: set[str]) -> str:
    """Write "a, b: text. c: text" as three lines, for names `a`, `b` and `c`.

    Args:
        docstring: text without indentation.
        names: names at which a line may be split. At the start of a line, every name is an entry.
    """
    return _SECTION.sub(lambda match: match[1] + "".join(_entries(match[2], names)), docstring)


def _entries(section: str, names: set[str]) -> Iterator[str]:
    indent = " " * (len(section) - len(section.lstrip(" ")))
    for lines in re.split(rf"^{indent}(?=\S)", section, flags=re.MULTILINE)[1:]:
        starts = [match for match in _ENTRY.finditer(lines) if match.start() == 0 or set(_grouped(match)) <= names]
        if not starts:
            yield indent + lines
        for start, end in zip(starts, [*(match.start() for match in starts[1:]), None]):
            for name in _grouped(start):
                yield f"{indent}{name}: {lines[start.end() : end].rstrip()}\n"
    yield "\n" if section.endswith("\n\n") else ""


def _grouped(match: re.Match) -> list[str]:
    return [name.strip("` ") for name in match[1].split(",")]
