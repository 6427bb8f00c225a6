"""The training objective of a head: reward by the score of the decoding process, plus acceptance and KL terms.

The head only biases coins. Drafts come from q, a rejected draft is replaced from norm(max(p - q, 0)) and a bonus token
comes from p, whatever the weight w is; so p(y), q(y), TV(p, q) and the outcome of every coin are all that is needed.
Knows nothing of models, vocabularies or tasks.
Letters: B rollouts, M decisions. Probabilities and log-probabilities have the dtype of the record (float32).
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F


# exp() overflows float32 at 88, and the 0 * inf of a branch that was not taken is nan.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, eq=False)
class Decisions:
    """The coins of B rollouts, flat: one entry per verified position (an accepted draft or a rejection).

    Bonus tokens, and drafts that the end of a rollout cut off, are no decisions.

    Attributes:
        sequence: long `[M]`, the rollout, 0 to `num_sequences - 1`, in any order.
        target_prob: float `[M]`, p(y) of the emitted token: the accepted draft, or the residual token in its place.
        draft_prob: float `[M]`, q(y) of the same token.
        tv: float `[M]`, TV(p, q) at the position.
        accepted: bool `[M]`.
        num_sequences: B; rollouts without a decision count.
    """

    sequence: torch.Tensor
    target_prob: torch.Tensor
    draft_prob: torch.Tensor
    tv: torch.Tensor
    accepted: torch.Tensor
    num_sequences: int

    def to(self, device: torch.device) -> "Decisions":
        columns = ("sequence", "target_prob", "draft_prob", "tv", "accepted")
        return replace(self, **{name: getattr(self, name).to(device) for name in columns})

    def counts(self) -> torch.Tensor:
        """Decisions per rollout: long `[B]`."""
        return torch.bincount(self.sequence, minlength=self.num_sequences)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean of `values` `[M]` over each rollout's decisions: `[B]`; 0 for a rollout without any."""
        totals = values.new_zeros(self.num_sequences).index_add(0, self.sequence, values)
        return totals / self.counts().clamp_min(1)


@dataclass(frozen=True)
class LossSettings:
    """What the loss is made of.

    Attributes:
        acceptance_coef: reward that one unit of expected acceptance is worth (c).
        kl_coef: reward that one nat of KL(v || p), summed over a rollout, costs.
        clip_range: PPO's epsilon; None leaves the importance ratios alone.
    """

    acceptance_coef: float = 0.0
    kl_coef: float = 0.0
    clip_range: float | None = None


def decision_log_prob(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Log-probability of every decision under the process, up to terms without w.

    The process accepts y with min(q, v)(y) and rejects into y with w TV(p, q) norm(max(p - q, 0))(y). That leaves
    log v(y) for an accepted y with p < q, log w for a rejection, and 0 for an accepted y with p >= q. Its gradient is
    the exact score; log v of all emitted tokens is not, because where a round ends depends on the coins too.

    Args:
        logit: float `[M]`, the head's output; w = sigmoid(logit).

    Returns:
        `[M]`. Finite with finite gradient at any logit, p and q.
    """
    surplus = decisions.target_prob >= decisions.draft_prob
    accepted = _log_mixture(logit, decisions).masked_fill(surplus, 0.0)
    return torch.where(decisions.accepted, accepted, F.logsigmoid(_at_precision(logit, decisions)))


def policy_loss(
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    clip_range: float | None = None,
    num_sequences: float | None = None,
) -> torch.Tensor:
    """Minus the surrogate reward: importance ratio times advantage, summed over decisions, mean over rollouts.

    Where `logit` is `old_logit` the gradient is plain REINFORCE. Further away one ratio per decision is PPO's local
    approximation (arXiv 1707.06347, eq. 7); unbiased would be the product of a rollout's ratios.

    Args:
        logit, old_logit: float `[M]`, the head's output now and when the rollouts were drawn.
        advantage: float `[B]`, one per rollout; see `center`.
        clip_range: a decision whose ratio has left 1 +- clip_range in the advantage's direction has no gradient.
        num_sequences: divisor, if not `decisions.num_sequences`: for a part of a batch, the size of the whole.
    """
    return _policy_terms(logit, old_logit, decisions, advantage, clip_range, num_sequences)[0]


def expected_acceptance(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Mean of 1 - w TV(p, q) over each rollout's verified positions: `[B]`; 1 for a rollout without any.

    Differentiates through w at the positions that were visited, not through which ones were. To have that part of the
    gradient too, add c times the detached value to the reward: both together are exact.
    """
    return 1.0 - decisions.mean(torch.sigmoid(_at_precision(logit, decisions)) * decisions.tv)


def accepted_share(decisions: Decisions) -> torch.Tensor:
    """Share of each rollout's coins that came up accepted: `[B]`; 1 for a rollout without any.

    A property of the rollout, so it can be added to the reward: that is how acceptance enters when advantages are
    normalised, `center(rewards + c * accepted_share(decisions), normalize=True)` with `acceptance_coef=0`. Added to
    normalised advantages, c would change its worth with the spread of the rewards.
    """
    return 1.0 - decisions.mean((~decisions.accepted).to(decisions.tv.dtype))


def kl_to_target(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Estimate KL(v || p) at every verified position from the emitted token alone: `[M]`, non-negative.

    A token emitted at a verified position, accepted or residual, is distributed as v. So p/v - 1 - log(p/v) is
    unbiased ("k3", http://joschu.net/blog/kl-approx.html). Its derivative is not: on average it is that of KL(p || v).
    The gradient is therefore that of log(p/v)^2 / 2, which is unbiased for KL(v || p) with visitation held fixed. Both
    hold where rollouts were drawn with `logit`. p is floored at the smallest normal number: a token that is impossible
    under p costs 87 nats in float32, not infinity.
    """
    excess = _log_mixture(logit, decisions) - _floored_log(decisions.target_prob)
    descent = 0.5 * excess.square()
    bounded = excess.detach().clamp_min(-_MAX_LOG_RATIO)
    return torch.expm1(-bounded) + bounded + (descent - descent.detach())


def center(rewards: torch.Tensor, normalize: bool = False) -> torch.Tensor:
    """Advantages from rewards: `[B]` to `[B]`. Pass the rewards of the global batch, not of one device.

    Args:
        rewards: float `[B]`. Each is part of its own baseline, which shrinks the expected gradient by 1 - 1/B and
            leaves its direction alone.
        normalize: also divide by the standard deviation (arXiv 2501.03262). The acceptance term must then be in the
            rewards: see `accepted_share`. Equal rewards give zeros.
    """
    centered = rewards - rewards.mean()
    if not normalize:
        return centered
    std = centered.square().mean().sqrt()
    # Equal rewards can differ from their mean by rounding, which must not be scaled up to 1.
    spread = std > 1e-6 * rewards.abs().max()
    return torch.where(spread, centered / std.clamp_min(torch.finfo(std.dtype).tiny), 0.0)


def diversed_loss(
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    settings: LossSettings,
    num_sequences: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss: minus reward, minus `acceptance_coef` times acceptance, plus `kl_coef` times KL.

    All terms are sums over rollouts with one divisor, so the losses of the parts of a batch add up to that of the
    whole. Arguments as in `policy_loss`.

    Returns:
        The loss, a scalar, and detached scalars of this part of the batch; nan where there is no decision:
        `policy_loss`; `ratio`, `clip_fraction` (decisions without gradient), `weight` and `kl`, means over decisions;
        `expected_acceptance`, mean over rollouts that have one.
    """
    divisor = decisions.num_sequences if num_sequences is None else num_sequences
    policy, ratio, clipped = _policy_terms(logit, old_logit, decisions, advantage, settings.clip_range, num_sequences)
    acceptance, kl = expected_acceptance(logit, decisions), kl_to_target(logit, decisions)
    loss = policy
    # A term that is off must not reach the gradient, where 0 * inf would be nan.
    if settings.acceptance_coef:
        loss = loss - settings.acceptance_coef * acceptance.sum() / divisor
    if settings.kl_coef:
        loss = loss + settings.kl_coef * kl.sum() / divisor
    metrics = {
        "policy_loss": policy,
        "ratio": ratio.mean(),
        "clip_fraction": clipped.to(ratio.dtype).mean(),
        "weight": torch.sigmoid(_at_precision(logit, decisions)).mean(),
        "expected_acceptance": acceptance[decisions.counts() > 0].mean(),
        "kl": kl.mean(),
    }
    return loss, {name: value.detach() for name, value in metrics.items()}


def _policy_terms(
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    clip_range: float | None,
    num_sequences: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The policy loss, and per decision the ratio and whether clipping took its gradient."""
    # Also a guard: an advantage per decision would be indexed without complaint.
    assert advantage.shape == (decisions.num_sequences,), "one advantage per rollout"
    change = decision_log_prob(logit, decisions) - decision_log_prob(old_logit.detach(), decisions)
    ratio = change.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    gain = advantage.to(ratio.dtype)[decisions.sequence]
    surrogate = ratio * gain
    clipped = torch.zeros_like(decisions.accepted)
    if clip_range is not None:
        bounded = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * gain
        clipped = bounded < surrogate
        surrogate = torch.where(clipped, bounded, surrogate)
    divisor = decisions.num_sequences if num_sequences is None else num_sequences
    return -surrogate.sum() / divisor, ratio, clipped


def _at_precision(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    assert logit.shape == decisions.sequence.shape, "one logit per decision"
    return logit.to(decisions.target_prob.dtype)


def _floored_log(prob: torch.Tensor) -> torch.Tensor:
    return prob.clamp_min(torch.finfo(prob.dtype).tiny).log()


def _log_mixture(logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """log v(y) = log(w p(y) + (1 - w) q(y)), `[M]`."""
    # In log space throughout: at p = 0, w = 1 to rounding, v itself would be 0 and its gradient nan. One term may be
    # log 0, so p needs no floor, which would outweigh (1 - w) q where that is tiny; q has one for the case of both.
    logit = _at_precision(logit, decisions)
    return torch.logaddexp(
        F.logsigmoid(logit) + decisions.target_prob.log(),
        F.logsigmoid(-logit) + _floored_log(decisions.draft_prob),
    )
