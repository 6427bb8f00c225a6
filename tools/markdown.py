"""Markdown helpers for README and documentation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; cells are Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def prompts(records: Sequence[Mapping[str, Any]]) -> str:
    """Describe the number of prompts in records and of samples per prompt."""
    return f"{records[0]['n']:,} prompts x {records[0]['samples_per_prompt']}"


def folded(summary: str, text: str) -> str:
    """Return text in a collapsed block, for the code host and the documentation's site."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>'
