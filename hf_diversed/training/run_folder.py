"""The folder of a run: can it be written to, and does another run use it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout
from transformers import TrainingArguments

from hf_diversed.running.files import writing


LOCK = ".training.lock"


def check_writable(folder: Path) -> None:
    """Make the folder if it is not there, and write to it, so that a run fails now and not at its first save.

    Raises:
        WriteError: if that cannot be done.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def sole_run(args: TrainingArguments) -> Iterator[None]:
    """Keep other runs out of `args.output_dir`, on all processes of this one.

    The lock is the system's own on an open file: it ends with the process, however that ends, so a killed run leaves
    none. The file itself stays.

    Raises:
        OSError: if another run is there, or the folder cannot be written to; in every process of this run.
    """
    lock = FileLock(Path(args.output_dir) / LOCK)
    problem = _taken(lock, Path(args.output_dir)) if args.process_index == 0 else None
    try:
        # Without this word from the first process the others would wait for it for ever.
        if problem := broadcast_object_list([problem])[0]:
            raise problem
        yield
    finally:
        lock.release()


def _taken(lock: FileLock, folder: Path) -> OSError | None:
    """Take the lock, or say why not."""
    try:
        check_writable(folder)
        lock.acquire(timeout=0)
    except Timeout:
        return OSError(
            f"another run is training in {folder} (it holds {LOCK}); wait for its end, or choose another output_dir."
        )
    except OSError as error:
        return error
    return None
