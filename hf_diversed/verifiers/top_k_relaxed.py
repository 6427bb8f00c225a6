"""Relaxed acceptance of TensorRT-LLM: accept a draft token among the target's top k within a margin."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers.base import Verifier, check_count, check_range


class TopKRelaxedVerifier(Verifier):
    """Accept x iff it is among the target's `top_k` best tokens and p(x) >= max p - delta, else draw from p.

    In greedy decoding the residual token is argmax p, and the defaults are lossless. Sampling is never lossless,
    because argmax p is always accepted. See https://nvidia.github.io/TensorRT-LLM (MTP,
    `use_relaxed_acceptance_for_thinking`). Use `PhaseVerifier` to relax the thinking phase only.

    Args:
        top_k: at least 1, `relaxed_topk`; the documented example is 10.
        delta: in [0, 1], `relaxed_delta`; the documented example is 0.6.
    """

    needs_input_ids = False

    def __init__(self, top_k: int = 1, delta: float = 0.0):
        self.top_k = check_count("top_k", top_k, "1 keeps the target's best token only.")
        self.delta = check_range(
            "delta", delta, 0.0, 1.0, "0 keeps only tokens as likely as the best, 1 all of the k."
        )

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        scores = target.scores[:, :-1]
        chosen = scores.gather(-1, draft.tokens[..., None])
        among_best = (scores > chosen).sum(-1) < self.top_k
        prob = target.prob(draft.tokens)
        near = (prob > 0.0) & (prob >= target.top_prob()[:, :-1] - self.delta)  # delta may exceed max p
        is_best = draft.tokens == scores.argmax(-1)
        # With top_k = 1, only the argmax of tied best tokens is accepted.
        kept = is_best | (among_best & near & (self.top_k > 1))
        return Verdict(kept.float(), target.probs if draft.sampled else target.at)
