"""Results on disk as they come: one file of JSON lines per process, a header and then one line per finished call.

Knows nothing of models. What is in a header must be the same in every file of a folder; a line that a crash tore apart
is dropped, so its call is simply done again.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


_FILES = "batches-*.jsonl"


@dataclass
class Results:
    """What an evaluation has so far.

    Attributes:
        header: settings, task, models, prompts: what every entry was made under.
        entries: by (method, batch, sample), one finished call: `rule`, `static_weight`, `seconds`,
            `peak_memory_bytes` and `_kind`, and `rows`, lists with one value per completion.
    """

    header: dict
    entries: dict[tuple[str, int, int], dict] = field(default_factory=dict)

    def add(self, entry: dict) -> None:
        """File one call; of two that say the same, the first one stays."""
        self.entries.setdefault((entry["method"], entry["batch"], entry["sample"]), entry)

    def labels(self) -> list[str]:
        """The methods, in the order in which they came."""
        return list(dict.fromkeys(label for label, _, _ in self.entries))

    def missing(self, labels: Iterable[str]) -> list[tuple[str, int, int]]:
        """Calls of these methods that are not done yet."""
        batches, samples = self.header["num_batches"], self.header["settings"]["samples_per_prompt"]
        wanted = ((label, batch, sample) for label in labels for batch in range(batches) for sample in range(samples))
        return [key for key in wanted if key not in self.entries]


class Journal:
    """The file that one process appends to, in a folder that several may share."""

    def __init__(self, folder: Path, rank: int, header: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"batches-{rank}.jsonl"
        if self.path.exists():
            _drop_torn_line(self.path)
        if not self.path.exists() or self.path.stat().st_size == 0:
            self.append(header)

    def append(self, value: dict) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")


def read_results(folder: Path | str, header: dict | None = None) -> Results:
    """Read all files of a folder.

    Args:
        header: what they must have been made under; None for "the same as each other".

    Raises:
        ValueError: on a file of other settings, an unreadable line before the last, or a folder without results.
    """
    results = None if header is None else Results(header)
    for path in sorted(Path(folder).glob(_FILES)):
        lines = _read_lines(path)
        if not lines:
            continue
        results = results or Results(lines[0])
        _check_header(path, lines[0], results.header)
        for entry in lines[1:]:
            results.add(entry)
    if results is None:
        raise ValueError(f"{folder} holds no results ({_FILES}); run an evaluation with this output folder first.")
    return results


def write_json(path: Path, value: dict) -> None:
    """Write strict JSON in one move: who reads it never sees half of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def _read_lines(path: Path) -> list[dict]:
    *lines, _torn = path.read_text(encoding="utf-8").split("\n")
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number} is no JSON ({error}); remove the line or the file.") from error
    return values


def _drop_torn_line(path: Path) -> None:
    """A process that was killed while writing leaves a line without its end."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


def _check_header(path: Path, found: dict, expected: dict) -> None:
    found, expected = _flat(found), _flat(json.loads(json.dumps(expected)))
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if names:
        differences = "; ".join(f"{name}: {found.get(name)!r} there, {expected.get(name)!r} here" for name in names)
        raise ValueError(
            f"{path} holds results of other settings ({differences}); choose another output folder or the settings "
            "of this one."
        )


def _flat(header: dict) -> dict:
    """Settings and the rest on one level; a value in force wins over the setting that may leave it to the task."""
    return header.get("settings", {}) | {name: value for name, value in header.items() if name != "settings"}
