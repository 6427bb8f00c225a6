"""Log-probabilities and expected rejections of learned verifiers, as functions of the head's logits, for training.

The head affects acceptance only: draft tokens come from q, residual tokens from norm(max(p - q, 0)) and bonus tokens
from p. A few probabilities and the outcome at each verified position are therefore sufficient.
Shapes: B rollouts, M decisions. Probabilities and log-probabilities have the dtype of the record (float32).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F


@dataclass(frozen=True, eq=False)
class Decisions:
    """Acceptance decisions of B rollouts, flat: one entry per accepted or rejected draft token.

    Bonus tokens and draft tokens after the end of a rollout are not included.

    Attributes:
        sequence: long `[M]`, index of the rollout, 0 to `num_sequences - 1`, in any order.
        target_prob: float `[M]`, p(y) of the emitted token y: the accepted draft token or the residual token.
        draft_prob: float `[M]`, q(y) of the same token.
        tv: float `[M]`, TV(p, q) at the position.
        strict_prob: float `[M]`, min(1, p(x) / q(x)) of the draft token x, accepted or not.
        accepted: bool `[M]`.
        num_sequences: B, including rollouts without decisions.
    """

    COLUMNS: ClassVar = ("sequence", "target_prob", "draft_prob", "tv", "strict_prob", "accepted")

    sequence: torch.Tensor
    target_prob: torch.Tensor
    draft_prob: torch.Tensor
    tv: torch.Tensor
    strict_prob: torch.Tensor
    accepted: torch.Tensor
    num_sequences: int

    def to(self, device: torch.device) -> "Decisions":
        return replace(self, **{name: getattr(self, name).to(device) for name in self.COLUMNS})

    def counts(self) -> torch.Tensor:
        """Return the number of decisions per rollout: long `[B]`."""
        return torch.bincount(self.sequence, minlength=self.num_sequences)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of `values` `[M]` over the decisions of each rollout: `[B]`; 0 without decisions."""
        totals = values.new_zeros(self.num_sequences).index_add(0, self.sequence, values)
        return totals / self.counts().clamp_min(1)


class AcceptanceModel(ABC):
    """How acceptance depends on the output of the head, `logit`: float `[M]`."""

    @abstractmethod
    def log_prob(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Return the log-probability of every decision, `[M]`, up to terms that do not depend on the head.

        Finite, with finite gradient, for any logit, p and q.
        """

    @abstractmethod
    def expected_rejection(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Return the probability, `[M]`, that a draft token is rejected at each position."""

    def weight(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Return the weight on the target at every decision: `[M]`."""
        return torch.sigmoid(_as_record_dtype(logit, decisions))


class MixtureAcceptance(AcceptanceModel):
    """The mixture v = w p + (1 - w) q with w = sigmoid(logit).

    y is drafted and accepted with probability min(q, v)(y), and emitted after a rejection with
    w TV(p, q) norm(max(p - q, 0))(y). Without constant terms, `log_prob` is log v(y) for an accepted y with p < q, 0
    for one with p >= q, and log w for a rejection. Its gradient is the exact score. The gradient of log v summed over
    the emitted tokens is not, because the length of a round also depends on acceptance.
    """

    def log_prob(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        logit, p, q = _as_record_dtype(logit, decisions), decisions.target_prob, decisions.draft_prob
        # log(w p + (1 - w) q) in log space, because v rounds to 0 at p = 0 and w near 1, where its gradient is NaN.
        # Only q has a floor: one of the two terms may be log 0, and a floor of p could exceed a tiny (1 - w) q.
        floored = q.clamp_min(torch.finfo(q.dtype).tiny)
        log_v = torch.logaddexp(F.logsigmoid(logit) + p.log(), F.logsigmoid(-logit) + floored.log())
        return torch.where(decisions.accepted, log_v.masked_fill(p >= q, 0.0), F.logsigmoid(logit))

    def expected_rejection(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return self.weight(logit, decisions) * decisions.tv


class TokenAcceptance(AcceptanceModel):
    """A weight per token, w(x) = sigmoid(logit) at the draft token x (`verifiers/mixture.py`).

    x is accepted with probability 1 - w(x) + w(x) min(1, p(x)/q(x)). Without constant terms, `log_prob` is the log of
    this for an accepted x with p < q, 0 for one with p >= q, and log w(x) for a rejection. Its gradient is the exact
    score and depends on the draft token only.
    """

    def log_prob(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        logit, strict = _as_record_dtype(logit, decisions), decisions.strict_prob
        # log(1 - w + w min(1, p/q)), in log space as in `MixtureAcceptance`.
        log_kept = torch.logaddexp(F.logsigmoid(-logit), F.logsigmoid(logit) + strict.log())
        return torch.where(decisions.accepted, log_kept.masked_fill(strict >= 1.0, 0.0), F.logsigmoid(logit))

    def expected_rejection(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return self.weight(logit, decisions) * (1.0 - decisions.strict_prob)


def _as_record_dtype(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    assert logit.shape == decisions.sequence.shape, "one output per decision"
    return logit.to(decisions.target_prob.dtype)
