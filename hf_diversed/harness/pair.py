"""A target and a draft model, their tokenizer and their heads."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed.head import DiversedHead


@dataclass(frozen=True)
class Pair:
    """A target and a draft model with the same vocabulary, their tokenizer, and their heads by task.

    Without a draft model, draft tokens come from prompt lookup.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    heads: Mapping[str, DiversedHead] = field(default_factory=dict)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Pair":
        """Move all modules in place, as `torch.nn.Module.to` does, and return the pair. Heads keep their dtype."""
        for model in (self.target, self.draft):
            if model is not None:
                model.to(device=device, dtype=dtype)
        for head in self.heads.values():
            head.to(device)
        return self


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model by Hub id or folder, with left padding."""
    return AutoTokenizer.from_pretrained(name, padding_side="left")


def load_model(name: str, device: torch.device | str, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    """Load a model by Hub id or folder, in eval mode."""
    return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map=device).eval()


def eos_ids(model: PreTrainedModel) -> list[int]:
    """Return the EOS ids of the model's generation config."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def pad_id(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """Return the id for padding: the tokenizer's pad token, else an EOS id, else 0."""
    ids = [tokenizer.pad_token_id, tokenizer.eos_token_id, *eos_ids(model), 0]
    return next(int(pad) for pad in ids if pad is not None)
