"""Markdown that README and documentation share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def prompts(records: Sequence[Mapping[str, Any]]) -> str:
    """How many prompts, and samples of each, records are of."""
    return f"{records[0]['n']:,} prompts x {records[0]['samples_per_prompt']}"


def folded(summary: str, text: str) -> str:
    """Return text that a reader unfolds, on the code host and on the documentation's site."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>'
