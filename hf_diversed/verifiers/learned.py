"""What training asks of a rule whose coins are biased by a head. Pure torch.

Drafts come from q, a rejected draft is replaced from norm(max(p - q, 0)) and a bonus token comes from p, whatever the
head says; so a few probabilities and the outcome of every coin are all that is needed.
Letters: B rollouts, M decisions. Probabilities and log-probabilities have the dtype of the record (float32).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F


@dataclass(frozen=True, eq=False)
class Decisions:
    """The coins of B rollouts, flat: one entry per verified position (an accepted draft or a rejection).

    Bonus tokens, and drafts that the end of a rollout cut off, are no decisions.

    Attributes:
        sequence: long `[M]`, the rollout, 0 to `num_sequences - 1`, in any order.
        target_prob: float `[M]`, p(y) of the emitted token: the accepted draft, or the residual token in its place.
        draft_prob: float `[M]`, q(y) of the same token.
        tv: float `[M]`, TV(p, q) at the position.
        strict_prob: float `[M]`, min(1, p(x) / q(x)) of the drafted token x, whatever became of it.
        bias: float `[M]`, TV(v, p) at the position, of the law v that the rollout was drawn under.
        accepted: bool `[M]`.
        num_sequences: B; rollouts without a decision count.
    """

    COLUMNS: ClassVar = ("sequence", "target_prob", "draft_prob", "tv", "strict_prob", "bias", "accepted")

    sequence: torch.Tensor
    target_prob: torch.Tensor
    draft_prob: torch.Tensor
    tv: torch.Tensor
    strict_prob: torch.Tensor
    bias: torch.Tensor
    accepted: torch.Tensor
    num_sequences: int

    def to(self, device: torch.device) -> "Decisions":
        return replace(self, **{name: getattr(self, name).to(device) for name in self.COLUMNS})

    def counts(self) -> torch.Tensor:
        """Decisions per rollout: long `[B]`."""
        return torch.bincount(self.sequence, minlength=self.num_sequences)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean of `values` `[M]` over each rollout's decisions: `[B]`; 0 for a rollout without any."""
        totals = values.new_zeros(self.num_sequences).index_add(0, self.sequence, values)
        return totals / self.counts().clamp_min(1)


class LearnedRule(Protocol):
    """How a rule's coins depend on what its head logit; `logit` is the head's output, float `[M]`."""

    def log_prob(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Log-probability of every decision under the process, up to terms that the head has no part in: `[M]`.

        Finite, with finite gradient, at any output, p and q.
        """

    def expected_rejection(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Chance that the draft of each verified position is rejected, before its coin is flipped: `[M]`."""

    def log_excess(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Log of the emitted law over p, at the emitted token: `[M]`.

        Its gradient is that law's score, or the decision's, which has the same mean given the token.
        """

    def weight(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """Weight on the target at every decision: `[M]`."""


class MixtureScore:
    """The mixture v = w p + (1 - w) q with w = sigmoid(logit): a `LearnedRule`.

    The process accepts y with min(q, v)(y) and rejects into y with w TV(p, q) norm(max(p - q, 0))(y). That leaves
    log v(y) for an accepted y with p < q, log w for a rejection, and 0 for an accepted y with p >= q. Its gradient is
    the exact score; log v of all emitted tokens is not, because where a round ends depends on the coins too.
    """

    def log_prob(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        surplus = decisions.target_prob >= decisions.draft_prob
        accepted = self._log_mixture(logit, decisions).masked_fill(surplus, 0.0)
        return torch.where(decisions.accepted, accepted, F.logsigmoid(_at_precision(logit, decisions)))

    def expected_rejection(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return self.weight(logit, decisions) * decisions.tv

    def log_excess(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return self._log_mixture(logit, decisions) - _floored_log(decisions.target_prob)

    def weight(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return torch.sigmoid(_at_precision(logit, decisions))

    def _log_mixture(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """log v(y) = log(w p(y) + (1 - w) q(y)), `[M]`."""
        # In log space throughout: at p = 0, w = 1 to rounding, v itself would be 0 and its gradient nan. One term may
        # be log 0, so p needs no floor, which would outweigh (1 - w) q where that is tiny; q has one for both at once.
        logit = _at_precision(logit, decisions)
        return torch.logaddexp(
            F.logsigmoid(logit) + decisions.target_prob.log(),
            F.logsigmoid(-logit) + _floored_log(decisions.draft_prob),
        )


class TokenScore:
    """A weight per token, w(x) = sigmoid(logit) at the drafted token x (see `weights.py`): a `LearnedRule`.

    The coin of x keeps it with 1 - w(x) + w(x) min(1, p(x)/q(x)). That leaves the log of this for an accepted x with
    p < q, log w(x) for a rejection, and 0 for an accepted x with p >= q: the exact score, at the drafted token alone.
    The law v at another token y depends on all weights of the position, through what is rejected there. That is taken
    from the record (`bias`), so `log_excess` is exact only where rollouts were drawn with `logit`.
    """

    def log_prob(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        accepted = self._log_kept(logit, decisions).masked_fill(decisions.strict_prob >= 1.0, 0.0)
        return torch.where(decisions.accepted, accepted, F.logsigmoid(_at_precision(logit, decisions)))

    def expected_rejection(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return self.weight(logit, decisions) * (1.0 - decisions.strict_prob)

    def log_excess(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        p, q = decisions.target_prob, decisions.draft_prob
        log_p, score = _floored_log(p), self.log_prob(logit, decisions)
        tiny = torch.finfo(p.dtype).tiny
        average = 1.0 - decisions.bias / decisions.tv.clamp_min(tiny)  # the weight that all tokens with p >= q share
        shared = torch.lerp(q, p, average.clamp(0.0, 1.0)).clamp_min(tiny).log()
        own = self._log_kept(logit, decisions) + _floored_log(q)
        value = torch.where(p < q, own, shared) - log_p
        return value.detach() + (score - score.detach())

    def weight(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        return torch.sigmoid(_at_precision(logit, decisions))

    def _log_kept(self, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
        """log(1 - w + w min(1, p/q)) of the drafted token, `[M]`; in log space for what `MixtureScore` says."""
        logit = _at_precision(logit, decisions)
        return torch.logaddexp(F.logsigmoid(-logit), F.logsigmoid(logit) + decisions.strict_prob.log())


def _at_precision(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    assert logit.shape == decisions.sequence.shape, "one output per decision"
    return logit.to(decisions.target_prob.dtype)


def _floored_log(prob: torch.Tensor) -> torch.Tensor:
    return prob.clamp_min(torch.finfo(prob.dtype).tiny).log()
