"""Approximate speculative decoding (arXiv 2608.03447): a budget of regret for greedy decoding."""

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers.base import Verifier, check_count, check_range
from hf_diversed.verifiers.lossless import greedy_verdict


class RegretBudgetVerifier(Verifier):
    """Keep a draft that is not the target's best while what it loses, max z_p - z_p(x), can be afforded.

    Of a block the longest prefix is kept in which, for the sequence so far, the sum of regrets is at most `budget`; at
    the i-th of K drafts (from 0) the regret is at most `max_regret` * (K - i), so that later drafts, which open up
    less, may cost less; and at most `max_mismatches` drafts have any. Then argmax p. Greedy only: sampling is refused.

    Args:
        budget: at least 0, in units of the processed target scores, per sequence; 0 is lossless. The authors report
            2.0625.
        max_regret: at least 0, per remaining draft of the block; no limit by default.
        max_mismatches: at least 1, per block; None for no limit.
    """

    needs_input_ids = False
    greedy_only = True
    state_width = 1  # regret so far

    def __init__(self, budget: float, max_regret: float = float("inf"), max_mismatches: int | None = None):
        self.budget = check_range("budget", budget, 0.0, float("inf"), "0 is lossless.")
        self.max_regret = check_range("max_regret", max_regret, 0.0, float("inf"), "0 is lossless, inf no limit.")
        self.max_mismatches = (
            None if max_mismatches is None else check_count("max_mismatches", max_mismatches, "None is no limit.")
        )

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
        strict = greedy_verdict(draft, target)
        scores = target.scores[:, :-1]
        regret = scores.amax(-1) - scores.gather(-1, draft.tokens[..., None]).squeeze(-1)
        # Where another rule decides nothing is spent; of tied best tokens only the target's own is no mismatch.
        mismatch = draft.active & (strict.accept_prob == 0.0)
        regret = torch.where(mismatch, regret, 0.0)
        spent = regret.new_zeros(len(regret), 1) if state is None else state
        total = spent + F.pad(regret.cumsum(-1), (1, 0))
        remaining = draft.active.flip(-1).cumsum(-1).flip(-1)
        affordable = (total[:, 1:] <= self.budget) & (regret <= self.max_regret * remaining.clamp_min(1))
        if self.max_mismatches is not None:
            affordable &= mismatch.cumsum(-1) <= self.max_mismatches
        relaxed = affordable & (min(self.budget, self.max_regret) > 0.0)
        accepted = torch.where(mismatch, relaxed.float(), strict.accept_prob)
        return Verdict(accepted, target.at, state=total[..., None])
