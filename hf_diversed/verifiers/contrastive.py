"""Speculative contrastive decoding (arXiv 2311.08981)."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers.base import DistributionVerifier, check_range, one_hot_best


class ContrastiveVerifier(DistributionVerifier):
    """Verify exactly against pi, the softmax of (1 + beta) z_p - beta z_q over the plausible tokens.

    z_p and z_q are processed scores. Plausible tokens have p(x) >= alpha * max p. The output follows pi, not p.
    Greedy: argmax pi. Where the logits warpers set z_q to -inf, the lowest finite z_q at the position is used instead.

    Args:
        beta: in [0, 1000], strength of the contrast; 0 ignores the draft scores.
        alpha: in [0, 1], plausibility threshold; 1 keeps only the target's best token. The defaults of beta and alpha
            are those of contrastive decoding for reasoning (arXiv 2309.09117).
    """

    needs_draft_confidence = True

    def __init__(self, beta: float = 0.5, alpha: float = 0.1):
        self.beta = check_range("beta", beta, 0.0, 1e3, "0 ignores the draft model; 0.1 to 1 are usual.")
        self.alpha = check_range("alpha", alpha, 0.0, 1.0, "0 keeps all tokens; 0.1 is usual.")

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        p, z_p, z_q = target.probs()[:, :-1], target.scores[:, :-1], draft.scores
        plausible = (p > 0.0) & (p >= self.alpha * p.amax(-1, keepdim=True))
        lowest = z_q.masked_fill(z_q == -torch.inf, torch.inf).amin(-1, keepdim=True)
        contrast = z_p + self.beta * (z_p - torch.maximum(z_q, lowest))
        scores = contrast.masked_fill(~plausible, -torch.inf)
        return torch.softmax(scores, dim=-1) if draft.sampled else one_hot_best(scores)
