"""Fuzzy speculative decoding (arXiv 2502.20704): accept draft tokens where q is close to p."""

from collections.abc import Callable

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.sampling import total_variation
from hf_diversed.verifiers.base import DistributionVerifier, check_range, decoding_probs


def kl_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return KL(p || q) in nats over the last axis; infinite if p > 0 where q = 0."""
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)


def js_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the Jensen-Shannon divergence in nats over the last axis; at most log 2."""
    middle = 0.5 * (p + q)
    return 0.5 * (kl_divergence(p, middle) + kl_divergence(q, middle))


_DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "kl": kl_divergence,
    "reverse_kl": lambda p, q: kl_divergence(q, p),
    "js": js_divergence,
    "tv": total_variation,
}


class FuzzyVerifier(DistributionVerifier):
    """Verify exactly against pi = q where D(p, q) <= threshold and max p <= confidence, else p.

    Verifying the other positions losslessly emits the same distribution as drawing their tokens from p, but accepts
    more draft tokens. Greedy: accept x iff the same condition holds, with p and q at temperature 1, or x is argmax p;
    else emit argmax p.

    Args:
        threshold: at least 0, in nats (TV: a probability); 0 is lossless.
        divergence: "kl", KL(p || q) = sum p log(p / q), infinite if the logits warpers remove a token from q that p
            keeps; "reverse_kl", KL(q || p), infinite in the opposite case; "js", the Jensen-Shannon divergence; or
            "tv". The authors report that the paper's results, stated for JS, were obtained with `reverse_kl`
            (NVIDIA/TensorRT-LLM#12853).
        confidence: in [0, 1]. Positions with max p > confidence are verified losslessly; 1 has no such positions.
            "kl" with 0.9 is the training-free verification of arXiv 2601.04766.
    """

    def __init__(self, threshold: float, divergence: str = "js", confidence: float = 1.0):
        self.threshold = check_range("threshold", threshold, 0.0, float("inf"), "0 is lossless, larger accepts more.")
        if divergence not in _DIVERGENCES:
            raise ValueError(f"`divergence` must be one of {', '.join(_DIVERGENCES)}, got {divergence!r}.")
        self.divergence = divergence
        self.confidence = check_range("confidence", confidence, 0.0, 1.0, "1 applies the threshold at every position.")

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        distance = _DIVERGENCES[self.divergence](target.probs()[:, :-1], draft.probs())
        # Rounding can give a divergence <= 0 where p and q differ, so threshold 0 is handled separately.
        close = (distance <= self.threshold) & (self.threshold > 0.0)
        close &= target.top_prob()[:, :-1] <= self.confidence
        q, p = decoding_probs(draft, target)
        return torch.where(close[..., None], q, p)
