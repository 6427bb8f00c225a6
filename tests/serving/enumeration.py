"""The plugin's logits for every possible draft token."""

import torch

from hf_diversed.serving.vllm.logits import RequestSettings, served_logits
from hf_diversed.verifiers import Verifier


def every_draft(
    verifier: Verifier, logits: torch.Tensor, q: torch.Tensor | None, settings: RequestSettings
) -> torch.Tensor:
    """Return `served_logits` for every draft token of each of M rows: `[M, V, V]`, row x for draft token x."""
    rows, vocab = logits.shape
    tokens = torch.arange(vocab).repeat(rows)
    table = torch.tensor([settings.row()] * len(tokens))
    spread = [None if values is None else values.repeat_interleave(vocab, 0) for values in (logits, q)]
    return served_logits([verifier], {settings}, table, *spread, tokens).unflatten(0, (rows, vocab))
