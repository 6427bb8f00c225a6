"""Training of heads by policy gradient on rollouts of speculative decoding."""

from hf_diversed.training.config import DiversedConfig
from hf_diversed.training.trainer import DiversedTrainer


__all__ = ["DiversedConfig", "DiversedTrainer"]
