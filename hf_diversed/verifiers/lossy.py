"""Lossy speculative sampling with two parameters (arXiv 2405.19261, table 1; "mentored decoding")."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import residual
from hf_diversed.verifiers.base import Verifier, check_range
from hf_diversed.verifiers.lenience import lenient_verdict


class LossyVerifier(Verifier):
    """Accept x with probability min(1, p(x) / ((1 - alpha) q(x))), else draw from norm(max(p / beta - q, 0)).

    With beta=None the emitted distribution is q clamped to [p / beta, p / (1 - alpha)], with beta such that it sums to
    1. Greedy: accept x iff p(x) >= (1 - alpha) * max p, with p at temperature 1; else emit argmax p.

    Args:
        alpha: in [0, 1); 0 is lossless (with beta = 1 or None), larger accepts more.
        beta: at least 1 - alpha. None computes it at every position, 1 is lenience 1 - alpha. Where p / beta <= q for
            every token, residual tokens are drawn from p.
    """

    needs_input_ids = False

    def __init__(self, alpha: float, beta: float | None = None):
        self.alpha = check_range(
            "alpha", alpha, 0.0, 1.0, "A value of 0 is lossless; larger values accept more.", excluded=1.0
        )
        advice = "None balances the mass, 1 is lenience 1 - alpha."
        self.beta = None if beta is None else check_range("beta", beta, 1.0 - self.alpha, float("inf"), advice)

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        def replacement(positions: torch.Tensor) -> torch.Tensor:
            p, q = target.probs(positions), draft.probs(positions)
            scale = balancing_scale(p, q, 1.0 - self.alpha) if self.beta is None else 1.0 / self.beta
            return residual(scale * p, q, fallback=p)

        return lenient_verdict(draft, target, 1.0 - self.alpha, replacement)


def balancing_scale(p: torch.Tensor, q: torch.Tensor, lenience: float) -> torch.Tensor:
    """Return 1 / beta, the s in [0, 1] with sum max(s p - q, 0) = sum max(q - p / lenience, 0).

    Args:
        p, q: float32 `[..., V]`.

    Returns:
        float32 `[..., 1]`.
    """
    cut = torch.clamp(q - p / lenience, min=0.0).sum(-1, keepdim=True)
    # The left side is linear in s between consecutive ratios q / p. Tokens with p = 0 do not contribute.
    ratio = torch.where(p > 0.0, q / p, torch.inf)
    ratio, order = ratio.sort(dim=-1)
    below_p, below_q = (probs.gather(-1, order).cumsum(-1) for probs in (p, q))
    reached = torch.where(ratio < torch.inf, ratio * below_p - below_q, torch.inf)  # the left side at s = ratio
    last = ((reached <= cut).sum(-1, keepdim=True) - 1).clamp_min(0)
    scale = (cut + below_q.gather(-1, last)) / below_p.gather(-1, last).clamp_min(torch.finfo(p.dtype).tiny)
    return scale.clamp(0.0, 1.0)
