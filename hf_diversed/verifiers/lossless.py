"""Lossless speculative sampling (arXiv 2211.17192, algorithm 1)."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import acceptance
from hf_diversed.verifiers.base import Verifier, target_residual


class LosslessVerifier(Verifier):
    """Accept x with probability min(1, p(x) / q(x)), else draw from norm(max(p - q, 0)). The output follows p exactly.

    Greedy: accept x iff it is argmax p, else emit argmax p.
    """

    needs_input_ids = False
    has_emitted_probs = True

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        if not draft.sampled:
            return greedy_verdict(draft, target)
        return Verdict(
            acceptance(target.prob(draft.tokens), draft.prob(draft.tokens)),
            target_residual(draft, target),
            trace=Trace(emitted_probs=lambda: target.probs()[:, :-1]),
        )


def greedy_verdict(draft: DraftOutput, target: TargetOutput) -> Verdict:
    """Accept draft tokens that equal the target's argmax, else emit it. The output is that of greedy decoding."""
    best = target.scores[:, : draft.tokens.shape[1]].argmax(dim=-1)
    return Verdict((best == draft.tokens).float(), target.at)
