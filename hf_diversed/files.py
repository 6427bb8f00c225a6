"""JSON files, and JSON Lines files that are appended to."""

import json
from collections.abc import Iterable
from pathlib import Path


def write_json(path: Path, value: dict) -> None:
    """Write strict JSON; missing folders are created. An existing file is replaced once the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def append_lines(path: Path, values: Iterable[dict]) -> None:
    """Append one line of strict JSON for each value."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(value, allow_nan=False) + "\n" for value in values))


def read_lines(path: Path) -> list[dict]:
    """Read the lines that `append_lines` wrote."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
