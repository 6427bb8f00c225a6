"""Batches of prompts with completions, and the laws that a model gives the completions' tokens."""

from collections.abc import Mapping, Sequence

import torch
from torch._dynamo.eval_frame import OptimizedModule
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
    """Logits `[N, V]` of a batch's completion tokens, row by row, on the model's device. The output embedding sees no
    others: prompts are most of a batch, and laws most of its memory.

    Args:
        model: what is called, perhaps `unwrapped` in a wrapper for several devices.
    """
    kept = batch["labels"][:, 1:] != IGNORED  # the last position predicts nothing

    def select(at_all: torch.Tensor) -> torch.Tensor:
        return at_all[:, :-1][kept.to(at_all.device)]

    # Ids beyond the embedding are padding of the other model's; in decoding too it reads its last one instead.
    ids = batch["input_ids"].clamp_max(_compat.known_ids(unwrapped) - 1).to(unwrapped.device)
    inputs = {"input_ids": ids, "attention_mask": batch["attention_mask"].to(unwrapped.device), "use_cache": False}
    if any(isinstance(module, OptimizedModule) for module in model.modules()):  # each new hook would compile it again
        columns = torch.arange(ids.shape[1] - 1)
        if _compat.supports_logits_to_keep(unwrapped):
            columns = kept.any(dim=0).nonzero().flatten()
            inputs["logits_to_keep"] = columns.to(unwrapped.device)
        at_columns = model(**inputs).logits[:, : len(columns)]
        return at_columns[kept[:, columns].to(at_columns.device)]
    if isinstance(model, torch.nn.DataParallel):  # each of its replicas has rows of its own
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
    """Compare next-token laws whose vocabularies may be padded to different sizes: ids that only the draft has are cut
    before its softmax, those that only the target has have q = 0, and p is untouched.

    Args:
        target_logits: float `[N, Vp]`. draft_logits: float `[N, Vq]`. learned: which one has a gradient; the other's
            would take as much memory as some laws.

    Returns:
        "tv", float32 `[N]`: TV(p, q), what a lossless verifier rejects (arXiv 2211.17192). "kl", float32 `[N]`:
        KL(p||q) over the ids that both have (a draft of a cut vocabulary says minus infinity for the others), as it is
        infinite beyond.
    """
    common = min(target_logits.shape[-1], draft_logits.shape[-1])
    log_p = (target_logits.float() / temperature).log_softmax(-1)[..., :common]
    log_q = (draft_logits[..., :common].float() / temperature).log_softmax(-1)
    p = log_p.exp()

    def kl(log_q: torch.Tensor) -> torch.Tensor:
        return (p * (log_p - log_q).masked_fill(log_q.detach().isinf(), 0.0)).sum(-1)

    def tv(log_q: torch.Tensor) -> torch.Tensor:
        return total_variation(log_q.exp(), p)  # in this order: q has all its mass on the common ids, p may not

    return {name: of(log_q if name == learned else log_q.detach()) for name, of in (("tv", tv), ("kl", kl))}
