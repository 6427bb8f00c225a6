"""Typical acceptance (Medusa, arXiv 2401.10774, section 3.3.1)."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers.base import Verifier, check_range
from hf_diversed.verifiers.lossless import greedy_verdict


class TypicalAcceptanceVerifier(Verifier):
    """Accept x iff p(x) > min(epsilon, delta * exp(-H(p))), else draw from p.

    H is the entropy of p in nats, so higher entropy lowers the threshold. q is not used. Greedy: lossless.

    Args:
        epsilon: in [0, 1], `posterior_threshold`; tokens with p(x) > epsilon are always accepted.
        delta: at least 0, `posterior_alpha`; the defaults are those of Medusa's `medusa_generate`.
    """

    needs_input_ids = False

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3):
        self.epsilon = check_range("epsilon", epsilon, 0.0, 1.0, "Smaller accepts more; 0.09 is Medusa's.")
        self.delta = check_range("delta", delta, 0.0, float("inf"), "Smaller accepts more; about sqrt(epsilon).")

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        if not draft.sampled:
            return greedy_verdict(draft, target)
        entropy = torch.special.entr(target.probs()[:, :-1]).sum(-1)
        threshold = (self.delta * torch.exp(-entropy)).clamp_max(self.epsilon)
        return Verdict((target.prob(draft.tokens) > threshold).float(), target.probs)
