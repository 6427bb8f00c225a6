"""Approximate speculative decoding (arXiv 2608.03447): greedy decoding with a regret budget."""

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers.base import Verifier, check_count, check_range
from hf_diversed.verifiers.lossless import greedy_verdict


class RegretBudgetVerifier(Verifier):
    """Accept draft tokens other than argmax p while the sum of their regrets is within a budget. Greedy only.

    The regret of x is max z_p - z_p(x). The longest prefix of a block is accepted that satisfies three conditions: the
    sum of regrets over the sequence is at most `budget`; the regret of draft token i of K (from 0) is at most
    `max_regret` * (K - i), which allows less for later tokens; and at most `max_mismatches` draft tokens differ from
    argmax p. The token after the prefix is argmax p.

    Args:
        budget: at least 0, in units of the processed target scores, per sequence; 0 is lossless. The authors
            report 2.0625.
        max_regret: at least 0, per remaining draft token of the block; no limit by default.
        max_mismatches: at least 1, per block; None is no limit.
    """

    needs_input_ids = False
    greedy_only = True
    state_width = 1  # sum of regrets so far

    def __init__(self, budget: float, max_regret: float = float("inf"), max_mismatches: int | None = None):
        self.budget = check_range("budget", budget, 0.0, float("inf"), "0 is lossless.")
        self.max_regret = check_range("max_regret", max_regret, 0.0, float("inf"), "0 is lossless, inf no limit.")
        self.max_mismatches = (
            None if max_mismatches is None else check_count("max_mismatches", max_mismatches, "None is no limit.")
        )

    def is_lossless(self, sampled: bool) -> bool:
        return min(self.budget, self.max_regret) == 0.0

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
        strict = greedy_verdict(draft, target)
        scores = target.scores[:, :-1]
        regret = scores.amax(-1) - scores.gather(-1, draft.tokens[..., None]).squeeze(-1)
        # Inactive positions add no regret. Among tied best tokens, all but the argmax are mismatches.
        mismatch = draft.active & (strict.accept_prob == 0.0)
        regret = torch.where(mismatch, regret, 0.0)
        spent = regret.new_zeros(len(regret), 1) if state is None else state
        total = spent + F.pad(regret.cumsum(-1), (1, 0))
        remaining = draft.active.flip(-1).cumsum(-1).flip(-1)
        affordable = (total[:, 1:] <= self.budget) & (
            regret <= self.max_regret * remaining.clamp_min(1).to(regret.dtype)
        )
        if self.max_mismatches is not None:
            affordable &= mismatch.cumsum(-1) <= self.max_mismatches
        relaxed = affordable & (min(self.budget, self.max_regret) > 0.0)
        accepted = torch.where(mismatch, relaxed.float(), strict.accept_prob)
        return Verdict(accepted, target.at, state=total[..., None])
