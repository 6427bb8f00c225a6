"""Speculative cascades (arXiv 2405.19261): use q, or part of it, where a deferral rule permits, else p."""

from collections.abc import Callable

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.sampling import total_variation
from hf_diversed.verifiers.base import DistributionVerifier, check_range, decoding_probs


_RULES_ON_DRAFT = {"chow", "diff", "opt", "token_v1"}
# Deferral rules map raw q and p `[B, G, V]`, TV of the processed p and q `[B, G, 1]` ("opt" only) and alpha to a mask
# that is True where q is kept: `[B, G, 1]` for whole positions, `[B, G, V]` for tokens. Equation numbers are those of
# the paper.
_ROW_RULES: dict[str, Callable] = {
    "chow": lambda q, p, tv, alpha: _top(q) >= 1.0 - alpha,  # eq. 2
    "diff": lambda q, p, tv, alpha: _top(q) >= _top(p) - alpha,  # eq. 5
    "opt": lambda q, p, tv, alpha: _top(q) >= _top(p) - alpha * tv,  # eq. 10
}
_TOKEN_RULES: dict[str, Callable] = {
    "token_v1": lambda q, p, tv, alpha: q >= _top(p) - alpha,  # eq. 13
    "token_v2": lambda q, p, tv, alpha: p >= _top(p) - alpha,  # eq. 14
    "token_v3": lambda q, p, tv, alpha: p >= (1.0 - alpha) * _top(p),  # eq. 15
}
_ALPHA_RANGES = {
    "chow": (0.0, 1.0, "0 is near lossless, 1 follows the draft model."),
    "diff": (-1.0, 1.0, "-1 is lossless, 1 follows the draft model."),
    "opt": (float("-inf"), float("inf"), "Small values around 0 are usual; larger follows the draft model."),
    "token_v1": (-1.0, 1.0, "-1 is lossless, 1 follows the draft model."),
    "token_v2": (-1.0, 1.0, "-1 is lossless, 1 follows the draft model."),
    "token_v3": (0.0, 1.0, "0 uses q only for the target's most likely token, 1 follows the draft model."),
}


class SpecCascadeVerifier(DistributionVerifier):
    """Verify exactly against a cascade distribution pi.

    "chow", "diff" and "opt" set pi = q where the deferral rule holds, else pi = p. The token rules select a set S of
    tokens: pi(x) = q(x) [x in S] + eta p(x), with eta the sum of q outside S. For "token_v3", S contains the tokens
    with p(x) >= (1 - alpha) max p. Rules use raw probabilities (temperature 1, no logits processors); pi and the
    total variation in "opt" use the processed ones (one-hot in greedy decoding).

    Args:
        rule: "chow", "diff", "opt", "token_v1", "token_v2" or "token_v3".
        alpha: the paper's deferral cost: in [0, 1] for "chow" and "token_v3", any number for "opt", else in [-1, 1].
    """

    needs_raw_logits = True

    def __init__(self, rule: str = "token_v3", alpha: float = 0.5):
        if rule not in _ALPHA_RANGES:
            raise ValueError(f"`rule` must be one of {', '.join(_ALPHA_RANGES)}, got {rule!r}.")
        low, high, advice = _ALPHA_RANGES[rule]
        self.rule = rule
        self.alpha = check_range("alpha", alpha, low, high, advice)
        self.needs_draft_confidence = rule in _RULES_ON_DRAFT

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        q, p = decoding_probs(draft, target)
        if draft.raw_logits is None or target.raw_logits is None:
            raise ValueError("SpecCascadeVerifier needs `raw_logits` of draft and target, got None.")
        raw_q, raw_p = torch.softmax(draft.raw_logits, -1), torch.softmax(target.raw_logits[:, :-1], -1)
        tv = total_variation(p, q)[..., None] if self.rule == "opt" else None
        if self.rule in _ROW_RULES:
            return torch.where(_ROW_RULES[self.rule](raw_q, raw_p, tv, self.alpha), q, p)
        kept = _TOKEN_RULES[self.rule](raw_q, raw_p, tv, self.alpha)
        deferred = torch.where(kept, 0.0, q).sum(-1, keepdim=True)
        return torch.where(kept, q, 0.0) + deferred * p


def _top(probs: torch.Tensor) -> torch.Tensor:
    return probs.max(dim=-1, keepdim=True).values
