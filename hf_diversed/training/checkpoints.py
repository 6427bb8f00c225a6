"""Atomic checkpoints: each is written to a temporary folder and then renamed. Publishing of the head during a run."""

import os
import shutil
from pathlib import Path

from huggingface_hub import CommitInfo
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, get_last_checkpoint, rotate_checkpoints

from hf_diversed import _compat
from hf_diversed.files import WriteError, writing
from hf_diversed.tasks.rewards import RewardError


logger = _compat.get_logger(__name__)
SAVING = ".saving"  # folder in the output folder that holds the checkpoint being written
# What torch and safetensors raise when a disk is full.
WRITE_FAILURES = (RuntimeError, SafetensorError)


def resume_point(output_dir: Path) -> str | None:
    """Return the checkpoint with the most steps, or None without checkpoints."""
    return get_last_checkpoint(str(output_dir)) if output_dir.is_dir() else None


def find_checkpoint(requested: str | bool | None, output_dir: Path) -> str | None:
    """Return the folder that a run continues from; None to start anew.

    Args:
        requested: a checkpoint folder, or True for the newest checkpoint in `output_dir`.

    Raises:
        ValueError: if the folder is missing, has no optimizer state (`Trainer` would start with a new optimizer), is
            not in `output_dir`, where the best checkpoint and the reference rewards of its run are, or is not the
            newest there.
    """
    found = resume_point(output_dir) if requested is True else requested or None
    if found is None:
        return None
    folder = Path(found)
    if not folder.is_dir():
        raise ValueError(f"the checkpoint folder {folder} does not exist.")
    if not (folder / OPTIMIZER_NAME).exists():
        advice = resume_point(folder) or "a checkpoint that was saved with save_only_model=False"
        raise ValueError(f"{folder} has no {OPTIMIZER_NAME}, so training cannot continue from it; pass {advice}.")
    if folder.parent.resolve() != output_dir.resolve():
        raise ValueError(
            f"{folder} belongs to the run in {folder.parent}, not to output_dir={output_dir}; pass {folder.parent} as "
            "output_dir, or resume a copy of that folder."
        )
    newest = resume_point(output_dir)
    if newest is not None and Path(newest).resolve() != folder.resolve():
        raise ValueError(
            f"{folder} is not the newest checkpoint in {output_dir}, from which a later resume would continue; move "
            f"or remove {newest} first."
        )
    return found


def publish(unfinished: Path, folder: Path) -> None:
    """Flush a checkpoint to disk and rename it to `folder`."""
    for path in (*unfinished.rglob("*"), unfinished):
        _sync(path)
    shutil.rmtree(folder, ignore_errors=True)  # left by an earlier save of the same step
    unfinished.replace(folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class AtomicCheckpoints(Trainer):
    """A `Trainer` that renames complete checkpoints into place before it removes older ones.

    A failed write raises a `WriteError` with the file's name. Pushes contain the head and its record only.
    """

    _saving = False

    def _get_output_dir(self, trial) -> str:
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, SAVING) if self._saving else folder

    def _save_checkpoint(self, model, trial) -> None:
        folder = self._checkpoint(self.state.global_step)
        unfinished = folder.parent / SAVING / folder.name
        if self.args.should_save:  # remove the files of an interrupted save
            shutil.rmtree(unfinished.parent, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._saving = True
        try:
            with writing(folder, *WRITE_FAILURES):
                super()._save_checkpoint(model, trial)
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with writing(folder):
                if self.state.best_global_step == self.state.global_step:  # transformers stored a path in `.saving`
                    self.state.best_model_checkpoint = str(folder)
                    self.state.save_to_json(str(unfinished / TRAINER_STATE_NAME))
                publish(unfinished, folder)
        self.accelerator.wait_for_everyone()
        self._locate_best()
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=self.args.output_dir,
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def save_state(self) -> None:
        with writing(Path(self.args.output_dir) / TRAINER_STATE_NAME):
            super().save_state()

    def _load_best_model(self) -> None:
        if self.state.best_model_checkpoint is not None:
            super()._load_best_model()

    def _locate_best(self) -> None:
        """Update the path of the best checkpoint, which was renamed or may have been moved with the output folder."""
        if self.state.best_global_step:
            best = self._checkpoint(self.state.best_global_step)
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ) -> CommitInfo | None:
        """Publish the head with its training record in one commit, see `DiversedHead.push_to_hub`.

        Args:
            commit_message: message of the commit.
            blocking: has no effect; a head is small.
            token: Hub token; by default `args.hub_token`.
            revision: branch; by default `args.hub_revision`.
            private: visibility of a new repository; by default `args.hub_private_repo`.
            kwargs: other arguments of `DiversedHead.push_to_hub`, such as `evaluation`, `license` and `tags`.

        Returns:
            The commit; None on all processes but the first.
        """
        args = self.args
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        return self.model.push_to_hub(
            self.hub_model_id or args.hub_model_id or Path(args.output_dir).absolute().name,
            training=Path(args.output_dir) / "provenance.json",
            commit_message=commit_message,
            token=token or args.hub_token,
            revision=revision or args.hub_revision,
            private=args.hub_private_repo if private is None else private,
            **kwargs,
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Publish the head only: checkpoints contain pickle files."""
        if self.args.hub_strategy == HubStrategy.END:
            return
        try:
            self.push_to_hub(commit_message=f"Training in progress, step {self.state.global_step}")
        except WriteError:
            raise
        except OSError as error:
            logger.warning(f"training continues, but its head could not be published: {error}")

    def _checkpoint(self, step: int) -> Path:
        return Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"


class Rescue(TrainerCallback):
    """Saves a checkpoint when a reward raises, and repeats an interrupted evaluation when the run is resumed.

    Without the repeated evaluation, the head of that step could not be selected as the best.
    """

    def __init__(self, trainer: Trainer):
        self.trainer, self.first_step = trainer, 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step = state.global_step
        # The flag is read from the checkpoint; it is still set if the evaluation did not finish.
        if control.should_evaluate:
            self.trainer._determine_best_metric(self.trainer.evaluate(), trial=None)
            self.trainer._save_checkpoint(self.trainer.model, trial=None)

    def save(self, error: RewardError) -> RewardError:
        """Save a checkpoint and return the error, extended by how to resume. Rewards are only called between updates,
        so the state is consistent."""
        step = self.trainer.state.global_step
        if step == self.first_step:
            return RewardError(f"{error} No step was finished; run the same command again.")
        self.trainer._save_checkpoint(self.trainer.model, trial=None)
        return RewardError(f"{error} The {step} steps before it are saved in checkpoint-{step}; resume from there.")
