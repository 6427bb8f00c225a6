"""Batches of prompts with completions, and the laws that a model gives the completions' tokens."""

from collections.abc import Mapping, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.sampling import total_variation


IGNORED = -100  # label of what has no loss: prompt and padding
STATES = "target_states"


def collate(examples: Sequence[Mapping]) -> dict[str, torch.Tensor]:
    """Pad to the right, where no model sees it: `input_ids`, `attention_mask` and `labels`, long `[B, S + T]`; the
    target's states of examples that have them one after another, `[N, D]`, as the laws below are."""
    ids = [torch.tensor(example["input_ids"]) for example in examples]
    labels = [torch.tensor(example["labels"]) for example in examples]
    batch = {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }
    if STATES in examples[0]:
        batch[STATES] = torch.cat([example[STATES] for example in examples])
    return batch


def completion_ids(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Ids `[N]` of a batch's completion tokens, row by row."""
    labels = batch["labels"][:, 1:]
    return labels[labels != IGNORED]


def completion_logits(model, batch: Mapping[str, torch.Tensor], unwrapped: PreTrainedModel) -> torch.Tensor:
    """Logits `[N, V]` of a batch's completion tokens, row by row, on the model's device; those of prompt positions
    are not even computed.

    Args:
        model: what is called, perhaps `unwrapped` in a wrapper for several devices.
    """
    kept = batch["labels"][:, 1:] != IGNORED
    first = int(kept.any(0).int().argmax())
    width = batch["labels"].shape[1] - first  # with the last position, which predicts nothing
    # Ids beyond the embedding are padding of the other model's; in decoding too it reads its last one instead.
    ids = batch["input_ids"].clamp_max(_compat.known_ids(unwrapped) - 1).to(unwrapped.device)
    narrow = {"logits_to_keep": width} if _compat.supports_logits_to_keep(unwrapped) else {}
    mask = batch["attention_mask"].to(unwrapped.device)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **narrow).logits[:, -width:-1]
    return logits[kept[:, first:].to(logits.device)]


def divergences(
    target_logits: torch.Tensor, draft_logits: torch.Tensor, temperature: float
) -> dict[str, torch.Tensor]:
    """Compare next-token laws whose vocabularies may be padded to different sizes: ids that only the draft has are cut
    before its softmax, those that only the target has have q = 0, and p is untouched.

    Args:
        target_logits: float `[N, Vp]`. draft_logits: float `[N, Vq]`.

    Returns:
        "tv", float32 `[N]`: TV(p, q), what a lossless verifier rejects (arXiv 2211.17192). "kl", float32 `[N]`:
        KL(p||q) over the ids that both have (a draft of a cut vocabulary says minus infinity for the others), as it is
        infinite beyond.
    """
    common = min(target_logits.shape[-1], draft_logits.shape[-1])
    log_p = (target_logits.float() / temperature).log_softmax(-1)[..., :common]
    log_q = (draft_logits[..., :common].float() / temperature).log_softmax(-1)
    p, gap = log_p.exp(), (log_p - log_q).masked_fill(log_q.detach().isinf(), 0.0)
    # In this order: q has all its mass on the common ids, p may not.
    return {"tv": total_variation(log_q.exp(), p), "kl": (p * gap).sum(-1)}
