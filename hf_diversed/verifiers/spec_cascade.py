"""Speculative cascades (arXiv 2405.19261): defer to the draft's law, or keep its good tokens, where that is safe."""

from collections.abc import Callable

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.sampling import total_variation
from hf_diversed.verifiers.base import DistributionVerifier, check_range, decoding_laws


_GATES_ON_DRAFT = {"chow", "diff", "opt", "token_v1"}
# Each gate sees raw draft and target probabilities `[B, G, V]`, TV of the processed laws `[B, G, 1]` and alpha, and
# says where (`[B, G, 1]`: the whole position; `[B, G, V]`: single tokens) the draft's law is kept. Equation numbers
# are the paper's.
_ROW_GATES: dict[str, Callable] = {
    "chow": lambda q, p, tv, alpha: _top(q) >= 1.0 - alpha,  # eq. 2
    "diff": lambda q, p, tv, alpha: _top(q) >= _top(p) - alpha,  # eq. 5
    "opt": lambda q, p, tv, alpha: _top(q) >= _top(p) - alpha * tv,  # eq. 10
}
_TOKEN_GATES: dict[str, Callable] = {
    "token_v1": lambda q, p, tv, alpha: q >= _top(p) - alpha,  # eq. 13
    "token_v2": lambda q, p, tv, alpha: p >= _top(p) - alpha,  # eq. 14
    "token_v3": lambda q, p, tv, alpha: p >= (1.0 - alpha) * _top(p),  # eq. 15
}
_ALPHA_RANGES = {
    "chow": (0.0, 1.0, "0 is near lossless, 1 follows the draft."),
    "diff": (-1.0, 1.0, "-1 is lossless, 1 follows the draft."),
    "opt": (float("-inf"), float("inf"), "Small values around 0 are usual; larger follows the draft."),
    "token_v1": (-1.0, 1.0, "-1 is lossless, 1 follows the draft."),
    "token_v2": (-1.0, 1.0, "-1 is lossless, 1 follows the draft."),
    "token_v3": (0.0, 1.0, "0 keeps only the target's best token, 1 follows the draft."),
}


class SpecCascadeVerifier(DistributionVerifier):
    """Exact verification against a cascaded law pi.

    Row rules set pi = q where a confidence gate opens, else p. Token rules keep a set S of tokens:
    pi(x) = q(x) [x in S] + eta p(x), eta = sum of q outside S. Gates read raw probabilities (temperature 1, no
    warpers); pi is made of the processed laws (one-hot when greedy).

    Args:
        rule: "chow", "diff", "opt", "token_v1", "token_v2" or "token_v3".
        alpha: cost of deferring; see the range in the error message of each rule.
    """

    needs_raw_logits = True

    def __init__(self, rule: str = "token_v3", alpha: float = 0.5):
        if rule not in _ALPHA_RANGES:
            raise ValueError(f"`rule` must be one of {', '.join(_ALPHA_RANGES)}, got {rule!r}.")
        low, high, advice = _ALPHA_RANGES[rule]
        self.rule = rule
        self.alpha = check_range("alpha", alpha, low, high, advice)
        self.needs_draft_confidence = rule in _GATES_ON_DRAFT

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        q, p = decoding_laws(draft, target)
        if draft.raw_logits is None or target.raw_logits is None:
            raise ValueError("SpecCascadeVerifier needs raw logits on both outputs.")
        raw_q, raw_p = torch.softmax(draft.raw_logits, -1), torch.softmax(target.raw_logits[:, :-1], -1)
        tv = total_variation(p, q)[..., None]
        if self.rule in _ROW_GATES:
            return torch.where(_ROW_GATES[self.rule](raw_q, raw_p, tv, self.alpha), q, p)
        kept = _TOKEN_GATES[self.rule](raw_q, raw_p, tv, self.alpha)
        deferred = torch.where(kept, 0.0, q).sum(-1, keepdim=True)
        return torch.where(kept, q, 0.0) + deferred * p


def _top(probs: torch.Tensor) -> torch.Tensor:
    return probs.max(dim=-1, keepdim=True).values
