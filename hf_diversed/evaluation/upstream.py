"""What comparing against upstream's own decoding takes: a pinned draft length, and the lengths it does not report."""

import copy

import torch
from transformers import PreTrainedModel


def constant_draft(draft: PreTrainedModel, gamma: int) -> PreTrainedModel:
    """A shallow twin of the draft with its draft length pinned: upstream reads it from there only."""
    twin = copy.copy(draft)
    twin.generation_config = copy.deepcopy(draft.generation_config)
    twin.generation_config.num_assistant_tokens = gamma
    twin.generation_config.num_assistant_tokens_schedule = "constant"
    twin.generation_config.assistant_confidence_threshold = 0.0
    return twin


def generated_lengths(tokens: torch.Tensor, eos_ids: int | list[int] | None) -> torch.Tensor:
    """Generated tokens per row of `[B, T]`, the first EOS included: long `[B]`."""
    ended = torch.isin(tokens, torch.tensor([] if eos_ids is None else eos_ids, device=tokens.device))
    return (ended.cumsum(-1) - ended.long() == 0).sum(-1)
