"""Checkpoints that count only when complete: a marker with every file's hash is written last, by atomic rename."""

import hashlib
import json
import os
from pathlib import Path

from safetensors import SafetensorError
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from hf_diversed import _compat
from hf_diversed.running.files import writing


logger = _compat.get_logger(__name__)
MARKER = "complete.json"
# What torch and safetensors raise when a disk is full.
WRITE_FAILURES = (RuntimeError, SafetensorError)


def seal(folder: Path) -> None:
    """Declare a checkpoint complete, once it is on the disk. What is written to it later makes it damaged."""
    marker, unfinished = folder / MARKER, folder / f".{MARKER}"
    # Both may be left over from an interrupted save to the same folder.
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path not in (marker, unfinished)]
    hashes = {str(path.relative_to(folder)): _digest(path) for path in files}
    # Older checkpoints go once this one counts: a power failure must not find it in the cache alone.
    for path in dict.fromkeys([*files, *(path.parent for path in files)]):
        _sync(path)
    unfinished.write_text(json.dumps({"sha256": hashes}, indent=2))
    _sync(unfinished)
    unfinished.replace(marker)
    _sync(folder)
    _sync(folder.parent)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None if it is complete."""
    try:
        hashes = dict(json.loads((folder / MARKER).read_text())["sha256"])
    except FileNotFoundError:
        return f"its save was interrupted (no {MARKER})" if folder.is_dir() else "it is not there"
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {MARKER} cannot be read"
    for name, digest in hashes.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        try:
            changed = _digest(path) != digest
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if changed:
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
    digest = hashlib.sha256()
    with path.open("rb") as file:  # the optimizer of a whole draft has gigabytes
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    """Have a file, or the list of a folder's files, written to the disk itself."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SealedCheckpoints(Trainer):
    """A trainer whose checkpoints are declared complete before older ones are let go, whose failed saves say what to
    do, and which looks at the best checkpoint before it loads it."""

    def _save_checkpoint(self, model, trial) -> None:
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        folder = self._checkpoint(self.state.global_step)
        try:
            with writing(folder, *WRITE_FAILURES):
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with writing(folder):
                seal(folder)
            rotate_checkpoints(
                output_dir=self.args.output_dir,
                save_total_limit=limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with writing(Path(output_dir or self.args.output_dir), *WRITE_FAILURES):
            super().save_model(output_dir, _internal_call)

    def save_state(self) -> None:
        with writing(Path(self.args.output_dir) / TRAINER_STATE_NAME):
            super().save_state()

    def _load_callback_state(self) -> None:
        super()._load_callback_state()  # comes with the rest of a checkpoint's state, the best one's name among it
        self._check_best()

    def _load_best_model(self) -> None:
        self._check_best()
        if self.state.best_model_checkpoint is not None:
            super()._load_best_model()

    def _check_best(self) -> None:
        """Let go of a best checkpoint that is damaged, for the best one among those that are complete."""
        state, args = self.state, self.args
        if not args.load_best_model_at_end or not state.best_global_step:
            return
        best = self._checkpoint(state.best_global_step)
        problem = damage(best)
        if problem is None:
            state.best_model_checkpoint = str(best)  # also where the folder of the run was moved
            return
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        found = {
            line["step"]: line[name]
            for line in state.log_history
            if name in line and damage(self._checkpoint(line["step"])) is None
        }
        sign = 1.0 if args.greater_is_better else -1.0
        step = max(found, key=lambda step: sign * found[step], default=None)
        state.best_global_step, state.best_metric = step, found.get(step)
        state.best_model_checkpoint = None if step is None else str(self._checkpoint(step))
        instead = (
            "the last head remains unless a later one is better" if step is None else f"checkpoint-{step} is best"
        )
        logger.warning(f"the best checkpoint, {best.name}, is damaged ({problem}) and is passed over: {instead}.")

    def _checkpoint(self, step: int) -> Path:
        return Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
