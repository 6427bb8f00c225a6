"""Crash-safe files: JSON files that are replaced atomically, and JSON Lines files that are appended to."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


REMOVE_LINE = "remove the line, or the whole file, to compute it again."


class WriteError(OSError):
    """A file could not be written; the message contains its path, the reason and a remedy."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert an `OSError` in the block to a `WriteError` with the path, which the original message may lack."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(
            f"{path} could not be written: {error}. {_free_space(path)}Free some space, or choose a folder that can "
            "be written to, and run the command again; completed work is kept."
        ) from error


def _free_space(path: Path) -> str:
    """Return a sentence about the free space at `path`; empty if it is unknown."""
    existing = next((folder for folder in path.parents if folder.is_dir()), None)
    return "" if existing is None else f"{shutil.disk_usage(existing).free / 2**20:.1f} MiB are free there. "


def write_json(path: Path, value: dict) -> None:
    """Write strict JSON atomically, so that the file is never incomplete, even after a power failure; missing folders
    are created. Raises `WriteError` if that fails; an existing file is then unchanged."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def append_lines(path: Path, values: Iterable[dict]) -> None:
    """Append one line of strict JSON for each value."""
    with writing(path), path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(value, allow_nan=False) + "\n" for value in values))


def read_lines(path: Path) -> list[dict]:
    """Read the lines that `append_lines` wrote, without an incomplete last line. Raises ValueError if a complete line
    is not a JSON object."""
    *lines, _incomplete = path.read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError as error:  # also for invalid UTF-8
            raise ValueError(f"{path}, line {number} is not JSON ({error}); {REMOVE_LINE}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{path}, line {number} must be a JSON object, got {value!r}; {REMOVE_LINE}")
        values.append(value)
    return values


def differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """Return where the settings in a file differ from the current ones: "seed: 0 there, 1 here"; "" if nowhere."""
    names = sorted(name for name in stored.keys() | current.keys() if stored.get(name) != current.get(name))
    return "; ".join(f"{name}: {stored.get(name)!r} there, {current.get(name)!r} here" for name in names)


def drop_torn_line(path: Path) -> None:
    """Remove an incomplete last line, as a killed process leaves. Does nothing if the file does not exist."""
    if not path.exists():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
