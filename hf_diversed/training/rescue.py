"""A run that ends because a reward failed: the steps before are saved, and what was interrupted is done on resume."""

from transformers import Trainer, TrainerCallback

from hf_diversed.tasks.rewards import RewardError


class Rescue(TrainerCallback):
    """Saves the steps that were done before a reward failed, and makes up for the evaluation that was interrupted when
    the run goes on: without it that step's head could not become the best."""

    def __init__(self, trainer: Trainer):
        self.trainer, self.first_step = trainer, 0

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step = state.global_step
        # As the checkpoint has it: the flag falls when an evaluation ends.
        if control.should_evaluate:
            self.trainer._determine_best_metric(self.trainer.evaluate(), trial=None)
            self.trainer._save_checkpoint(self.trainer.model, trial=None)

    def save(self, error: RewardError) -> RewardError:
        """Save a checkpoint, and return the error with a word on that. Rewards are called between two updates only,
        when nothing is half done."""
        step = self.trainer.state.global_step
        if step == self.first_step:
            return RewardError(f"{error} No step was done since the run was started; start it again as it was.")
        self.trainer._save_checkpoint(self.trainer.model, trial=None)
        return RewardError(f"{error} The {step} steps before it are saved in checkpoint-{step}; resume from there.")
