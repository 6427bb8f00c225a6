"""Training of heads: rollouts of the decoding loop, an objective over its coins, and a `Trainer` around both."""

from hf_diversed.training.arguments import DiversedConfig
from hf_diversed.training.draft_tuning import DraftTuningConfig, tune_draft
from hf_diversed.training.trainer import DiversedTrainer


__all__ = ["DiversedConfig", "DiversedTrainer", "DraftTuningConfig", "tune_draft"]
