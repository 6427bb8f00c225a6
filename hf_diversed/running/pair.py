"""Two models that decode together, and what belongs to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import hf_diversed.cut_vocabulary  # noqa: F401  `from_pretrained` knows its classes then


if TYPE_CHECKING:
    from hf_diversed.head import DiversedHead


@dataclass(frozen=True)
class Pair:
    """A target and a draft of one vocabulary, their tokenizer, and the heads that come with them, by task. Without a
    draft, drafts are looked up in the text."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    heads: Mapping[str, "DiversedHead"] = field(default_factory=dict)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Pair":
        """The pair with its modules moved, as `torch.nn.Module.to` moves them: in place. Heads keep their dtype."""
        for model in (self.target, self.draft):
            if model is not None:
                model.to(device=device, dtype=dtype)
        for head in self.heads.values():
            head.to(device)
        return self


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model by name, for prompts of which all end in the same column."""
    return AutoTokenizer.from_pretrained(name, padding_side="left")


def load_model(name: str, device: torch.device | str, dtype: torch.dtype | str = "auto") -> PreTrainedModel:
    """A model by name of the Hub or folder, in eval mode."""
    return AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map=device).eval()


def eos_ids(model: PreTrainedModel) -> list[int]:
    """The tokens that end a text, by the model's generation config."""
    ids = model.generation_config.eos_token_id
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else list(ids)


def pad_id(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """What fills up shorter rows; some tokenizers have no pad token, and then any id will do."""
    ids = [tokenizer.pad_token_id, tokenizer.eos_token_id, *eos_ids(model), 0]
    return next(int(pad) for pad in ids if pad is not None)
