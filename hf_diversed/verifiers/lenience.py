"""Lenience (arXiv 2211.17192, appendix A.5)."""

from collections.abc import Callable

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import acceptance
from hf_diversed.verifiers.base import Verifier, check_range, target_residual


class LenientVerifier(Verifier):
    """Accept x with probability min(1, p(x) / (lenience * q(x))), else draw from norm(max(p - q, 0)).

    The emitted distribution never exceeds p / lenience. Greedy: accept x iff p(x) >= lenience * max p, with p at
    temperature 1; else emit argmax p.

    Args:
        lenience: in (0, 1]; 1 is lossless. (Some papers write alpha = 1 - lenience.)
    """

    needs_input_ids = False

    def __init__(self, lenience: float):
        advice = "A value of 1 is lossless; smaller values accept more."
        self.lenience = check_range("lenience", lenience, 0.0, 1.0, advice, excluded=0.0)

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        return lenient_verdict(draft, target, self.lenience, target_residual(draft, target))


def lenient_verdict(
    draft: DraftOutput,
    target: TargetOutput,
    lenience: float,
    replacement: Callable[[torch.Tensor], torch.Tensor],
) -> Verdict:
    """Return the verdict of lenient acceptance; sampling draws residual tokens from `replacement`."""
    p = target.prob(draft.tokens)
    if draft.sampled:
        return Verdict(acceptance(p, lenience * draft.prob(draft.tokens)), replacement)
    best, top = target.scores[:, :-1].argmax(dim=-1), target.top_prob()[:, :-1]
    # Compare ids, not probabilities: softmax may round the two best scores to the same probability.
    kept = (draft.tokens == best) | ((p >= lenience * top) & (lenience < 1.0))
    return Verdict(kept.float(), target.at)
