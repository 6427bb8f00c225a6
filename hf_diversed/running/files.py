"""Files that a crash leaves whole: replaced in one move, or grown line by line. Knows nothing of what is in them."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


REMOVE_LINE = "remove the line, so that it is done again, or the file."


class WriteError(OSError):
    """A file that could not be written; says which, why, and what to do."""


@contextmanager
def writing(path: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn what goes wrong in the block into a `WriteError` about `path`: the system's own words may name no file.

    Args:
        also: what else than an `OSError` a failed write raises in this block.
    """
    failures: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except WriteError:
        raise
    except failures as error:
        raise WriteError(
            f"{path} could not be written: {error}. {_room(path)}Free some space, or choose a folder that can be "
            "written to, and run it again; what was complete before is kept."
        ) from error


def _room(path: Path) -> str:
    """How much is free where `path` should go; nothing where that is unknown, too."""
    there = next((folder for folder in path.parents if folder.is_dir()), None)
    return "" if there is None else f"{shutil.disk_usage(there).free / 2**20:.1f} MiB are free there. "


def write_json(path: Path, value: dict) -> None:
    """Write strict JSON in one move: who reads it never sees half of it, not even after a power failure.

    Raises:
        WriteError: if that fails; what was there before is left, and nothing else.
    """
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
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
    """Read what `append_lines` wrote; what follows the last line's end was interrupted, and is left out.

    Raises:
        ValueError: on a whole line that is damaged.
    """
    *lines, _torn = path.read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError as error:  # also for bytes that are no text
            raise ValueError(f"{path}, line {number} is no JSON ({error}); {REMOVE_LINE}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{path}, line {number} must be a JSON object, got {value!r}; {REMOVE_LINE}")
        values.append(value)
    return values


def drop_torn_line(path: Path) -> None:
    """Cut what a process that was killed while writing left behind the last line's end; no file is fine, too."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
