"""Checks and locking of a run's output folder."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout
from transformers import TrainingArguments

from hf_diversed.files import writing


LOCK = ".training.lock"


def check_writable(folder: Path) -> None:
    """Create the folder if needed. Raises `WriteError` if it cannot be written to, before the first save."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


@contextmanager
def sole_run(args: TrainingArguments) -> Iterator[None]:
    """Lock `args.output_dir` against other runs.

    The operating system releases the lock when the process ends, even if it is killed. The lock file remains.

    Raises:
        OSError: in every process of this run, if another run uses the folder or it cannot be written to.
    """
    lock = FileLock(Path(args.output_dir) / LOCK)
    problem = _acquire(lock, Path(args.output_dir)) if args.process_index == 0 else None
    try:
        # Broadcast the error: otherwise the other processes wait forever.
        if problem := broadcast_object_list([problem])[0]:
            raise problem
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, folder: Path) -> OSError | None:
    """Acquire the lock; return the error if that fails, else None."""
    try:
        check_writable(folder)
        lock.acquire(timeout=0)
    except Timeout:
        return OSError(
            f"another run is training in {folder} (it holds {LOCK}); wait until it ends, or choose another output_dir."
        )
    except OSError as error:
        return error
    return None
