"""The training objective of a head: a policy gradient of the reward, plus an acceptance term.

The actions are the accept or reject decisions. The head affects acceptance only: draft tokens come from q, residual
tokens from norm(max(p - q, 0)) and bonus tokens from p. A few probabilities and the outcome at each verified position
are therefore sufficient. This module is independent of models, vocabularies and tasks.
Shapes: B rollouts, M decisions. Probabilities and log-probabilities have the dtype of the record (float32).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F


# exp() overflows float32 at 88, and 0 * inf in the gradient of an unused branch is NaN.
_MAX_LOG_RATIO = 20.0


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


def expected_acceptance(acceptance_model: AcceptanceModel, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Return the mean expected acceptance over each rollout's verified positions: `[B]`; 1 for rollouts without any.

    The gradient treats the set of visited positions as fixed. For the exact gradient, also add c times the detached
    value to the reward.
    """
    return 1.0 - decisions.mean(acceptance_model.expected_rejection(logit, decisions))


def accepted_share(decisions: Decisions) -> torch.Tensor:
    """Return the share of accepted decisions of each rollout: `[B]`; 1 for rollouts without decisions.

    It has no gradient and can be part of the reward.
    """
    return 1.0 - decisions.mean((~decisions.accepted).to(decisions.tv.dtype))


def leave_one_out(rewards: torch.Tensor, valid: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return advantages over the mean of the group's other valid rewards (RLOO, arXiv 2402.14740): `[B]`.

    Invalid rewards, and those without another valid reward in their group, have advantage 0. Differences between
    prompts add no variance.

    Args:
        rewards: float `[B]`, in consecutive groups of `group_size`.
        valid: bool `[B]`.
    """
    rewards, valid = rewards.view(-1, group_size), valid.view(-1, group_size)
    known = torch.where(valid, rewards, 0.0)
    others = valid.sum(1, keepdim=True) - 1
    baseline = (known.sum(1, keepdim=True) - known) / others.clamp_min(1)
    return torch.where(valid & (others > 0), rewards - baseline, 0.0).flatten()


def diversed_loss(
    acceptance_model: AcceptanceModel,
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    *,
    acceptance_coef: float = 0.0,
    clip_range: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss: policy loss minus `acceptance_coef` times acceptance.

    Both terms are means over rollouts, so the loss of a batch is the mean of the losses of its equally large parts.

    Args:
        acceptance_coef: reward per unit of expected acceptance (c).
        The others are those of `policy_terms`.

    Returns:
        The loss, a scalar, and detached scalar metrics of this part of the batch, NaN without decisions:
        `policy_loss`; `ratio`, `clip_fraction` (decisions without gradient) and `weight`, means over decisions;
        `expected_acceptance`, mean over rollouts with decisions.
    """
    policy, ratio, clipped = policy_terms(acceptance_model, logit, old_logit, decisions, advantage, clip_range)
    acceptance = expected_acceptance(acceptance_model, logit, decisions)
    loss = policy
    # Skip a disabled term: 0 * inf in its gradient would be NaN.
    if acceptance_coef:
        loss = loss - acceptance_coef * acceptance.sum() / decisions.num_sequences
    metrics = {
        "policy_loss": policy,
        "ratio": ratio.mean(),
        "clip_fraction": clipped.to(ratio.dtype).mean(),
        "weight": acceptance_model.weight(logit, decisions).mean(),
        "expected_acceptance": acceptance[decisions.counts() > 0].mean(),
    }
    return loss, {name: value.detach() for name, value in metrics.items()}


def policy_terms(
    acceptance_model: AcceptanceModel,
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    clip_range: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the policy loss, and for each decision the importance ratio and whether clipping removed its gradient.

    The loss is minus the ratio times the advantage, summed over decisions and averaged over rollouts.

    If `logit` equals `old_logit`, the gradient is that of REINFORCE. Otherwise the ratio per decision is PPO's local
    approximation (arXiv 1707.06347, eq. 7); the product of a rollout's ratios would be unbiased.

    Args:
        logit: float `[M]`, the head's current output.
        old_logit: float `[M]`, the head's output when the rollouts were drawn.
        advantage: float `[B]`, one per rollout: the reward minus a baseline.
        clip_range: PPO's epsilon. A decision whose ratio has left 1 +- clip_range in the direction of the advantage
            has no gradient; None disables clipping.
    """
    # An advantage per decision would be indexed without an error.
    assert advantage.shape == (decisions.num_sequences,), "one advantage per rollout"
    change = acceptance_model.log_prob(logit, decisions) - acceptance_model.log_prob(old_logit.detach(), decisions)
    ratio = change.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    gain = advantage.to(ratio.dtype)[decisions.sequence]
    surrogate = ratio * gain
    clipped = torch.zeros_like(decisions.accepted)
    if clip_range is not None:
        bounded = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * gain
        clipped = bounded < surrogate
        surrogate = torch.where(clipped, bounded, surrogate)
    return -surrogate.sum() / decisions.num_sequences, ratio, clipped
