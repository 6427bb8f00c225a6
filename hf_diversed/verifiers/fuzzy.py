"""Fuzzy speculative decoding (arXiv 2502.20704): trust the draft wherever its law is close to the target's."""

from collections.abc import Callable

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.sampling import total_variation
from hf_diversed.verifiers.base import DistributionVerifier, check_range, decoding_laws


def kl_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats over the last axis; infinite where p has mass outside of q's support."""
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)


def js_divergence(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence in nats over the last axis, at most log 2."""
    middle = 0.5 * (p + q)
    return 0.5 * (kl_divergence(p, middle) + kl_divergence(q, middle))


_DIVERGENCES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "kl": kl_divergence,
    "js": js_divergence,
    "tv": total_variation,
}


class FuzzyVerifier(DistributionVerifier):
    """Exact verification against pi = q where D(p, q) <= threshold, else p.

    The emitted law is that of the paper's rule (keep every draft where the laws are close, else sample from p); as
    the draft is verified against p elsewhere, more of it is kept. Greedy: keep x where the laws, at temperature 1,
    are close, or where it is argmax p.

    Args:
        threshold: at least 0, in nats (TV: a probability); 0 is lossless.
        divergence: "kl" (of p from q; a target token that the draft cuts away makes it infinite), "js" or "tv".
    """

    def __init__(self, threshold: float, divergence: str = "js"):
        self.threshold = check_range("threshold", threshold, 0.0, float("inf"), "0 is lossless, larger accepts more.")
        if divergence not in _DIVERGENCES:
            raise ValueError(f"`divergence` must be one of {', '.join(_DIVERGENCES)}, got {divergence!r}.")
        self.divergence = divergence

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        distance = _DIVERGENCES[self.divergence](target.probs()[:, :-1], draft.probs())
        # Divergences of close laws are mostly rounding, which must not open the gate at 0.
        close = (distance <= self.threshold) & (self.threshold > 0.0)
        q, p = decoding_laws(draft, target)
        return torch.where(close[..., None], q, p)
