"""Checkpoints that count only when complete: a marker with every file's hash is written last, by atomic rename."""

import hashlib
import json
import os
from pathlib import Path

from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from transformers.utils import logging


logger = logging.get_logger(__name__)
MARKER = "complete.json"


def seal(folder: Path) -> None:
    """Declare a checkpoint complete. What is written to it later makes it damaged."""
    marker, unfinished = folder / MARKER, folder / f".{MARKER}"
    # Both may be left over from an interrupted save to the same folder.
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in (marker, unfinished)]
    hashes = {str(path.relative_to(folder)): _digest(path) for path in files}
    with open(unfinished, "w") as file:
        json.dump({"sha256": hashes}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(marker)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None if it is complete."""
    try:
        hashes = dict(json.loads((folder / MARKER).read_text())["sha256"])
    except FileNotFoundError:
        return f"its save was interrupted (no {MARKER})"
    except (ValueError, KeyError, TypeError):
        return f"its {MARKER} cannot be read"
    for name, digest in hashes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if _digest(path) != digest:
            return f"{name} was changed after the save"
    return None


def newest_complete(output_dir: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest complete checkpoint of a run, or None, and the damaged ones that are newer, with what is wrong."""
    damaged: dict[Path, str] = {}
    for folder in sorted(output_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*"), key=_step, reverse=True):
        problem = damage(folder)
        if problem is None:
            return folder, damaged
        damaged[folder] = problem
    return None, damaged


def resume_point(output_dir: Path) -> str | None:
    """The folder to go on from, None to start anew; damaged checkpoints that are passed over are named.

    Raises:
        ValueError: if there are none but damaged ones. A first save that was interrupted is not counted: nothing is
            lost by starting anew.
    """
    found, damaged = newest_complete(output_dir)
    for folder, problem in damaged.items():
        logger.warning(f"{folder.name} is damaged ({problem}) and is passed over.")
    if found is None and any((folder / MARKER).exists() for folder in damaged):
        raise ValueError(
            f"no checkpoint in {output_dir} is complete: {', '.join(sorted(f.name for f in damaged))} were damaged. "
            "Remove them to start anew."
        )
    return None if found is None else str(found)


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class SealedCheckpoints(Trainer):
    """A trainer whose checkpoints are declared complete before older ones are let go."""

    def _save_checkpoint(self, model, trial) -> None:
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            seal(Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            rotate_checkpoints(
                output_dir=self.args.output_dir,
                save_total_limit=limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )
