"""MARS, margin-aware verification (arXiv 2601.15498): accept the target's two best tokens where they are close."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers.base import Verifier, check_range
from hf_diversed.verifiers.lossless import LosslessVerifier


class MarsVerifier(Verifier):
    """Where z_2 > theta * z_1, accept x iff it is one of the target's two best tokens, else draw from p.

    z_1 and z_2 are the two highest scores. Other positions are verified losslessly. Temperature does not change the
    condition, but adding a constant to all scores does: where z_1 <= 0, verification is lossless. Greedy: at these
    positions accept the two best tokens, else emit argmax p. (The authors' code relaxes sampling only.)

    Args:
        theta: in [0, 1]; 1 is lossless, smaller accepts more. The default is that of https://github.com/5SSjw/MARS.
    """

    needs_input_ids = False

    def __init__(self, theta: float = 0.9):
        self.theta = check_range("theta", theta, 0.0, 1.0, "1 is lossless, smaller accepts more; 0.9 is usual.")

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        strict = LosslessVerifier()(input_ids, draft, target)
        scores = target.scores[:, :-1]
        first, second = scores.topk(2, dim=-1).values.unbind(-1)
        close = second > self.theta * first
        among_best = (scores > scores.gather(-1, draft.tokens[..., None])).sum(-1) < 2
        accept_prob = torch.where(close, among_best.float(), strict.accept_prob)
        if not draft.sampled:
            return Verdict(accept_prob, target.at)
        rows = torch.arange(len(close), device=close.device)

        def replacement(positions: torch.Tensor) -> torch.Tensor:
            return torch.where(close[rows, positions, None], target.probs(positions), strict.replacement(positions))

        return Verdict(accept_prob, replacement)
