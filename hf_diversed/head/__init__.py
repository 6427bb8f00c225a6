"""The head, which predicts the weight on the target at each draft position."""

from transformers import AutoConfig, AutoModel

from hf_diversed.head.configuration_diversed import DiversedHeadConfig
from hf_diversed.head.modeling_diversed import DiversedHead, load_head


AutoConfig.register(DiversedHeadConfig.model_type, DiversedHeadConfig, exist_ok=True)
AutoModel.register(DiversedHeadConfig, DiversedHead, exist_ok=True)

__all__ = ["DiversedHead", "DiversedHeadConfig", "load_head"]
