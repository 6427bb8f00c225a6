"""Results on disk: one file of JSON lines per process, a header and then one line per session and finished call.

All files of a folder must have the same header. A line left incomplete by a crash is dropped, and its call is
repeated.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hf_diversed.files import REMOVE_LINE, append_lines, differences, drop_torn_line, read_lines, writing


_FILES = "batches-*.jsonl"


@dataclass
class Results:
    """The finished calls of an evaluation.

    Attributes:
        header: settings, task, models and prompts of all entries.
        entries: by (method, batch, sample), one finished call: `definition`, `static_weight`, `seconds`,
            `peak_memory_bytes` and `_kind`, and `rows`, lists with one value per completion.
        sessions: provenance of each session of each process that measured calls, in order of time.
        all_recorded: whether all calls are those of `sessions`. Earlier versions recorded no sessions.
    """

    header: dict
    entries: dict[tuple[str, int, int], dict] = field(default_factory=dict)
    sessions: list[dict] = field(default_factory=list)
    all_recorded: bool = True

    def add(self, entry: dict) -> None:
        """Add a finished call; of two with the same key, the first is kept."""
        self.entries.setdefault((entry["method"], entry["batch"], entry["sample"]), entry)

    def labels(self) -> list[str]:
        """The methods, in the order in which they were added."""
        return list(dict.fromkeys(label for label, _, _ in self.entries))

    def missing(self, labels: Iterable[str]) -> list[tuple[str, int, int]]:
        """Return the keys of the unfinished calls of these methods."""
        batches, samples = self.header["num_batches"], self.header["settings"]["samples_per_prompt"]
        keys = ((label, batch, sample) for label in labels for batch in range(batches) for sample in range(samples))
        return [key for key in keys if key not in self.entries]


def open_file(folder: Path, rank: int, header: dict) -> Path:
    """Return the file that one process appends to, with the header; several processes may share the folder."""
    path = folder / f"batches-{rank}.jsonl"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        drop_torn_line(path)
    if not path.exists() or path.stat().st_size == 0:
        append_lines(path, [header])
    return path


def read_results(folder: Path | str, header: dict | None = None) -> Results:
    """Read all files of a folder.

    Args:
        header: the required header; None to only compare the files with each other.

    Raises:
        ValueError: if headers differ, a complete line is not an entry, or the folder contains no results.
    """
    results = None if header is None else Results(header)
    for path in sorted(Path(folder).glob(_FILES)):
        lines = read_lines(path)
        if not lines:
            continue
        results = results or Results(lines[0])
        _check_header(path, lines[0], results.header)
        recorded = False  # whether a session precedes the calls
        for number, entry in enumerate(lines[1:], start=2):
            if "provenance" in entry:
                results.sessions.append(entry["provenance"])
                recorded = True
                continue
            results.all_recorded &= recorded
            if missing := _KEY - entry.keys():
                raise ValueError(f"{path}, line {number} lacks {', '.join(sorted(missing))}; {REMOVE_LINE}")
            results.add(entry)
    if results is None:
        raise ValueError(f"{folder} contains no results ({_FILES}); run an evaluation with this output folder first.")
    results.sessions.sort(key=lambda session: session["time"])
    return results


def remove_results(folder: Path | str) -> None:
    """Remove the finished calls in a folder, and the report of them."""
    for pattern in (_FILES, "evaluation.json"):
        for path in Path(folder).glob(pattern):
            path.unlink()


def _check_header(path: Path, found: dict, expected: dict) -> None:
    if changes := differences(_flat(found), _flat(json.loads(json.dumps(expected)))):
        raise ValueError(
            f"{path} holds results of other settings ({changes}); use these settings, choose another output "
            "folder, or remove the older results (--overwrite on the command line)."
        )


def _flat(header: dict) -> dict:
    """Return the header with its settings on the same level; its own values take precedence."""
    return header.get("settings", {}) | {name: value for name, value in header.items() if name != "settings"}


_KEY = {"method", "batch", "sample"}
