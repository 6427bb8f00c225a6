"""Draft models whose output embedding covers only some ids, which makes it much smaller than the target's.

All other ids have probability 0; every id is a valid input (as in FR-Spec, arXiv 2502.14856).

This file imports only torch and transformers: `save_pretrained` copies it next to the weights, so that
`AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` loads the model without hf_diversed.
"""

from typing import ClassVar

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)


class CutOutput(nn.Linear):
    """Logits of `kept_ids` and minus infinity for all others: `[..., D] -> [..., V]`.

    Args:
        hidden_size: D. num_kept: number of kept ids. num_ids: V.
    """

    kept_ids: torch.Tensor

    def __init__(self, hidden_size: int, num_kept: int, num_ids: int):
        super().__init__(hidden_size, num_kept, bias=False)
        self.num_ids = num_ids
        self.register_buffer("kept_ids", torch.arange(num_kept))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        kept = super().forward(hidden)
        logits = kept.new_full((*kept.shape[:-1], self.num_ids), -torch.inf)
        return logits.index_copy(-1, self.kept_ids, kept)


class _CutModel(PreTrainedModel):
    """Mixin that replaces the output embedding of a model class by a `CutOutput`, without tied weights."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {}

    def __init__(self, config):
        super().__init__(config)
        self.lm_head = CutOutput(config.hidden_size, config.num_kept_ids, config.vocab_size)
        self.post_init()


class CutLlamaConfig(LlamaConfig):
    model_type = "cut_llama"
    num_kept_ids: int = 1


class CutLlamaForCausalLM(_CutModel, LlamaForCausalLM):
    config_class = CutLlamaConfig


class CutQwen2Config(Qwen2Config):
    model_type = "cut_qwen2"
    num_kept_ids: int = 1


class CutQwen2ForCausalLM(_CutModel, Qwen2ForCausalLM):
    config_class = CutQwen2Config


class CutQwen3Config(Qwen3Config):
    model_type = "cut_qwen3"
    num_kept_ids: int = 1


class CutQwen3ForCausalLM(_CutModel, Qwen3ForCausalLM):
    config_class = CutQwen3Config


# By the class of the original model.
CUT: dict[type, type[PreTrainedModel]] = {
    LlamaForCausalLM: CutLlamaForCausalLM,
    Qwen2ForCausalLM: CutQwen2ForCausalLM,
    Qwen3ForCausalLM: CutQwen3ForCausalLM,
}

for _model in CUT.values():
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModelForCausalLM.register(_model.config_class, _model, exist_ok=True)
    _model.config_class.register_for_auto_class()
    _model.register_for_auto_class("AutoModelForCausalLM")
