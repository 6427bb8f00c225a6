"""Our logits for everything that could have been drafted, as the tests enumerate them."""

import torch

from hf_diversed.serving.vllm.law import Asked, served_logits
from hf_diversed.verifiers import Verifier


def every_draft(rule: Verifier, logits: torch.Tensor, q: torch.Tensor | None, asked: Asked) -> torch.Tensor:
    """`served_logits` for every token that each of M rows could have drafted: `[M, V, V]`, row x for draft x."""
    rows, vocab = logits.shape
    tokens = torch.arange(vocab).repeat(rows)
    table = torch.tensor([asked.row()] * len(tokens))
    spread = [None if law is None else law.repeat_interleave(vocab, 0) for law in (logits, q)]
    return served_logits([rule], {asked}, table, *spread, tokens).unflatten(0, (rows, vocab))
