"""Batches of prompts with completions, and a model's distributions at the completion tokens."""

from collections.abc import Mapping, Sequence

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.sampling import total_variation


IGNORED = -100  # label of prompt and padding tokens, which have no loss


def collate(examples: Sequence[Mapping]) -> dict[str, torch.Tensor]:
    """Collate examples with right padding.

    Returns:
        `input_ids`, `attention_mask` and `labels`, long `[B, S + T]`.
    """
    ids = [torch.tensor(example["input_ids"]) for example in examples]
    labels = [torch.tensor(example["labels"]) for example in examples]
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def completion_ids(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the ids of a batch's completion tokens, row by row: long `[N]`."""
    labels = batch["labels"][:, 1:]
    return labels[labels != IGNORED]


def completion_logits(model, batch: Mapping[str, torch.Tensor], unwrapped: PreTrainedModel) -> torch.Tensor:
    """Return the logits of a batch's completion tokens, row by row, `[N, V]`, on the model's device.

    To save memory, the output embedding is applied to these positions only.

    Args:
        model: the model to call: `unwrapped`, or a wrapper of it for several devices.
    """
    kept = batch["labels"][:, 1:] != IGNORED  # the last position predicts nothing

    def select(at_all: torch.Tensor) -> torch.Tensor:
        return at_all[:, :-1][kept.to(at_all.device)]

    # Ids beyond the embedding come from the other model's padded vocabulary. Decoding clamps them as well.
    ids = batch["input_ids"].clamp_max(_compat.known_ids(unwrapped) - 1).to(unwrapped.device)
    inputs = {"input_ids": ids, "attention_mask": batch["attention_mask"].to(unwrapped.device), "use_cache": False}
    if any(isinstance(module, OptimizedModule) for module in model.modules()):  # new hooks cause recompilation
        columns = torch.arange(ids.shape[1] - 1)
        if _compat.logits_to_keep(unwrapped) != "all":
            columns = kept.any(dim=0).nonzero().flatten()
            inputs["logits_to_keep"] = columns.to(unwrapped.device)
        at_columns = model(**inputs).logits[:, : len(columns)]
        return at_columns[kept[:, columns].to(at_columns.device)]
    if isinstance(model, torch.nn.DataParallel):  # each replica processes different rows
        return select(model(**inputs).logits)
    output = unwrapped.get_output_embeddings()
    handle = output.register_forward_pre_hook(lambda _, hidden: (select(hidden[0]),))
    try:
        logits: torch.Tensor = model(**inputs).logits
    finally:
        handle.remove()
    return logits


def divergences(
    target_logits: torch.Tensor, draft_logits: torch.Tensor, temperature: float, learned: str = "kl"
) -> dict[str, torch.Tensor]:
    """Return divergences of target and draft distributions whose vocabularies may be padded to different sizes.

    Ids that only the draft model has are removed before its softmax. Ids that only the target model has get q = 0; p
    covers the whole target vocabulary.

    Args:
        target_logits: float `[N, Vp]`.
        draft_logits: float `[N, Vq]`.
        learned: the divergence with a gradient, "tv", "kl" or "lk"; the others are detached to save memory.

    Returns:
        "tv", float32 `[N]`: TV(p, q), the rejection probability of a lossless verifier (arXiv 2211.17192). "kl",
        float32 `[N]`: KL(p||q), summed over the ids with q > 0, since it is infinite otherwise. "lk", float32 `[N]`:
        -log sum min(p, q) = -log(1 - TV), the negative log-acceptance of LK losses (arXiv 2602.23881).
    """
    common = min(target_logits.shape[-1], draft_logits.shape[-1])
    log_p = (target_logits.float() / temperature).log_softmax(-1)[..., :common]
    log_q = (draft_logits[..., :common].float() / temperature).log_softmax(-1)
    p = log_p.exp()

    def kl(log_q: torch.Tensor) -> torch.Tensor:
        return (p * (log_p - log_q).masked_fill(log_q.detach().isinf(), 0.0)).sum(-1)

    def tv(log_q: torch.Tensor) -> torch.Tensor:
        return total_variation(log_q.exp(), p)  # order matters: q sums to 1 over the common ids, p may not

    def lk(log_q: torch.Tensor) -> torch.Tensor:
        return -torch.minimum(log_q.exp(), p).sum(-1).clamp_min(torch.finfo(p.dtype).tiny).log()

    kinds = {"tv": tv, "kl": kl, "lk": lk}
    return {name: compute(log_q if name == learned else log_q.detach()) for name, compute in kinds.items()}
