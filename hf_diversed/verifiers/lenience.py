"""Lenience (arXiv 2211.17192, appendix A.5)."""

from collections.abc import Callable

import torch

from hf_diversed.blocks import BlockOutput, DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import acceptance
from hf_diversed.verifiers.base import Verifier, check_range, target_residual


class LenientVerifier(Verifier):
    """Accept x with probability min(1, p(x) / (lenience * q(x))), else draw from norm(max(p - q, 0)).

    When sampling with a lenience below 1, p(x) of a token that top-k, top-p or another warper removes is its
    probability without these warpers; with 0, no lenience would accept it. The emitted distribution never exceeds
    p / lenience, with this p. Greedy: accept x iff p(x) >= lenience * max p, with p at temperature 1; else emit
    argmax p.

    Args:
        lenience: in (0, 1]; 1 is lossless. (Some papers write alpha = 1 - lenience.)
    """

    needs_input_ids = False

    def __init__(self, lenience: float):
        advice = "A value of 1 is lossless; smaller values accept more."
        self.lenience = check_range("lenience", lenience, 0.0, 1.0, advice, excluded=0.0)

    @property
    def needs_untruncated(self) -> bool:  # type: ignore[override]
        return self.lenience < 1.0

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        p = target.prob(draft.tokens)
        if target.untruncated is not None and self.needs_untruncated:
            p = torch.where(p > 0.0, p, BlockOutput(target.untruncated).prob(draft.tokens))
        return lenient_verdict(p, draft, target, self.lenience, target_residual(draft, target))


def lenient_verdict(
    p: torch.Tensor,
    draft: DraftOutput,
    target: TargetOutput,
    lenience: float,
    replacement: Callable[[torch.Tensor], torch.Tensor],
) -> Verdict:
    """Return the verdict of lenient acceptance; sampling draws residual tokens from `replacement`.

    Args:
        p: float32 `[B, G]`, the target's probability of each draft token.
    """
    if draft.sampled:
        return Verdict(acceptance(p, lenience * draft.prob(draft.tokens)), replacement)
    best, top = target.scores[:, :-1].argmax(dim=-1), target.top_prob()[:, :-1]
    # Compare ids, not probabilities: softmax may round the two best scores to the same probability.
    kept = (draft.tokens == best) | ((p >= lenience * top) & (lenience < 1.0))
    return Verdict(kept.float(), target.at)
