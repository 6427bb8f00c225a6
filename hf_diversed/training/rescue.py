"""Recovery of runs in which a reward raised: a checkpoint is saved, and the evaluation repeated on resume."""

from transformers import Trainer, TrainerCallback

from hf_diversed.tasks.rewards import RewardError


class Rescue(TrainerCallback):
    """Saves a checkpoint when a reward raises, and repeats an interrupted evaluation when the run is resumed.

    Without that evaluation, the step's head could not be selected as the best.
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
        """Save a checkpoint and return the error with a message about it. Rewards are only called between updates, so
        the state is consistent."""
        step = self.trainer.state.global_step
        if step == self.first_step:
            return RewardError(f"{error} No step was done since the run was started; start it again as it was.")
        self.trainer._save_checkpoint(self.trainer.model, trial=None)
        return RewardError(f"{error} The {step} steps before it are saved in checkpoint-{step}; resume from there.")
