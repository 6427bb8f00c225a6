"""Cactus (arXiv 2604.04987): raise the draft token's target probability within a divergence bound."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import acceptance, residual
from hf_diversed.verifiers.base import Verifier, check_range
from hf_diversed.verifiers.lossless import greedy_verdict


class CactusVerifier(Verifier):
    """Verify each draft token x against H_x, which is p with a higher probability of x.

    H_x increases p(x) to p~(x) = min(1, p(x) + sqrt(2 delta p(x) (1 - p(x)))) and scales all other probabilities by a
    common factor. Accept x with probability min(1, p~(x) / q(x)), else draw from norm(max(H_x - q, 0)). H_x depends on
    x, so it is not the emitted distribution. Greedy: lossless.

    Args:
        delta: in [0, 1000], allowed divergence from p per token, in nats (second-order approximation); 0 is lossless.
    """

    needs_input_ids = False

    def __init__(self, delta: float):
        self.delta = check_range("delta", delta, 0.0, 1e3, "0 is lossless; 0.1 to 1 is typical.")

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
        if not draft.sampled:
            return greedy_verdict(draft, target)
        p = target.prob(draft.tokens).clamp_max(1.0)  # rounding must not make 1 - p negative
        gain = torch.sqrt(2.0 * self.delta * p * (1.0 - p))
        # Leave subnormal p unchanged: softmax may round it to 0, while its square root is not small.
        raised = (p + torch.where(p < torch.finfo(p.dtype).tiny, 0.0, gain)).clamp_max(1.0)
        # At p(x) = 1 the other tokens have no mass, and x is always accepted.
        other_scale = (1.0 - raised) / (1.0 - p).clamp_min(torch.finfo(p.dtype).tiny)

        def residual_probs(positions: torch.Tensor) -> torch.Tensor:
            at = positions[:, None]
            p, x = target.probs(positions), draft.tokens.gather(1, at)
            raised_x = torch.where(p.gather(-1, x) > 0.0, raised.gather(1, at), 0.0)  # softmax rounds subnormal p to 0
            conditioned = (p * other_scale.gather(1, at)).scatter(-1, x, raised_x)
            return residual(conditioned, draft.probs(positions), fallback=p)

        return Verdict(acceptance(raised, draft.prob(draft.tokens)), residual_probs)
