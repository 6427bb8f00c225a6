"""Block verification (arXiv 2403.10444): joint verification of the draft tokens of a block, which accepts more."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import residual, total_variation
from hf_diversed.verifiers.base import CompositeVerifier, Verifier
from hf_diversed.verifiers.lossless import LosslessVerifier


class BlockVerifier(CompositeVerifier):
    """Verify against the emitted distribution v of another verifier, block by block instead of token by token.

    P_0 = 1, P_i = min(1, P_{i-1} v(x_i) / q(x_i)), and Z_i is the sum of max(P_i v - q, 0) at the position after i
    draft tokens. h_i = Z_i / (Z_i + 1 - P_i), 1 for 0/0, and h_G = P_G for the whole block. Accept the longest
    prefix, of length i, whose uniform number is below h_i. Draw the residual token from norm(max(P_i v - q, 0)).
    v = p is lossless; otherwise the emitted distribution at draft positions is that of `verifier`. The expected number
    of accepted draft tokens is at least that of `verifier` alone. Greedy: same as `verifier`.

    Args:
        verifier: one with `has_emitted_probs` (lossless, static, DIVERSED, cascades, fuzzy, contrastive); lossless
            by default.

    Raises:
        ValueError: if `verifier` has no emitted distribution.
    """

    has_emitted_probs = True
    needs_input_ids = False  # an instance needs them if its verifier does

    def __init__(self, verifier: Verifier | None = None):
        self.verifier = LosslessVerifier() if verifier is None else verifier
        super().__init__(self.verifier)
        if not self.verifier.has_emitted_probs:
            raise ValueError(
                f"block verification needs a verifier with an emitted distribution, got {self.verifier!r}; "
                "use lossless, static, diversed, spec_cascade, fuzzy or contrastive."
            )

    def settings(self) -> dict[str, object]:
        return {"verifier": self.verifier}

    def strictness_per_row(self) -> Sequence[float]:
        return self.verifier.strictness_per_row()

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        (verdict,) = self.verify_parts(input_ids, [draft], target, row_values)
        if not draft.sampled:
            return verdict
        assert verdict.trace.emitted_probs is not None
        v, q = verdict.trace.emitted_probs(), draft.probs()
        accept_prob, reach = block_acceptance(v, q, draft)
        if type(self.verifier) is LosslessVerifier:  # v is p
            p, strict_prob = v, accept_prob
        else:
            p = target.probs()[:, :-1]
            strict_prob, _ = block_acceptance(p, q, draft)
        rows = torch.arange(len(v), device=v.device)

        def replacement(positions: torch.Tensor) -> torch.Tensor:
            scaled = reach[rows, positions, None] * v[rows, positions]
            return residual(scaled, q[rows, positions], fallback=p[rows, positions])

        # That an earlier token was accepted depends on this one, so an estimate from the draft token would be biased.
        bias = None if verdict.trace.bias is None else total_variation(v, p)
        trace = replace(verdict.trace, strict_prob=strict_prob, bias=bias)
        return Verdict(accept_prob, replacement, trace)


def block_acceptance(v: torch.Tensor, q: torch.Tensor, draft: DraftOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the acceptance probability of each draft token, given that all earlier ones are accepted.

    Accepting the longest i with u_i < h_i accepts at least i draft tokens with probability
    T_i = h_i + (1 - h_i) T_{i+1}. Accepting token i with probability T_i / T_{i-1}, from left to right, gives the same
    distribution of accepted lengths. Each run of active positions is a block.

    Args:
        v, q: float32 `[B, G, V]`.

    Returns:
        The acceptance probabilities, and P before each draft token; float32 `[B, G]` each.
    """
    active, count = draft.active, draft.tokens.shape[1]
    drafted = draft.tokens[..., None]
    ratio = (v.gather(-1, drafted) / q.gather(-1, drafted).clamp_min(torch.finfo(q.dtype).tiny)).squeeze(-1)
    reach = [torch.ones_like(ratio[:, 0])]
    for i in range(count):
        reach.append(torch.where(active[:, i], (reach[i] * ratio[:, i]).clamp_max(1.0), 1.0))
    before, after = torch.stack(reach[:-1], dim=1), torch.stack(reach[1:], dim=1)
    excess = torch.clamp(before[..., None] * v - q, min=0.0).sum(-1)  # at the position after i draft tokens
    denominator = excess[:, 1:] + 1.0 - after[:, :-1]
    inner = torch.where(denominator > 0.0, excess[:, 1:] / denominator, 1.0)
    ends = active & ~F.pad(active[:, 1:], (0, 1))
    h = torch.where(ends, after, F.pad(inner, (0, 1), value=1.0))
    tail = torch.zeros_like(h[:, 0])  # T_i, computed from right to left
    tails = []
    for i in reversed(range(count)):
        tail = torch.where(ends[:, i], h[:, i], h[:, i] + (1.0 - h[:, i]) * tail)
        tails.append(tail)
    at_least = torch.stack(tails[::-1], dim=1)
    first = active & ~F.pad(active[:, :-1], (1, 0))
    previous = torch.where(first, 1.0, F.pad(at_least[:, :-1], (1, 0), value=1.0))
    accept_prob = torch.where(previous > 0.0, at_least / previous, 0.0).clamp_max(1.0)
    return accept_prob, before
