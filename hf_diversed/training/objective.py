"""The training objective of a head: reward by the score of the decoding process, plus acceptance and KL terms.

The head only biases coins: what a coin's outcome says about it is the rule's to tell (`LearnedRule`). Knows nothing of
models, vocabularies, tasks or rules.
Letters: B rollouts, M decisions. Probabilities and log-probabilities have the dtype of the record (float32).
"""

from dataclasses import dataclass

import torch

from hf_diversed.verifiers.learned import Decisions, LearnedRule


# exp() overflows float32 at 88, and the 0 * inf of a branch that was not taken is nan.
_MAX_LOG_RATIO = 20.0


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


def expected_acceptance(rule: LearnedRule, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Mean expected acceptance over each rollout's verified positions: `[B]`; 1 for a rollout without any.

    Differentiates through the rule at the positions that were visited, not through which ones were. To have that part
    of the gradient too, add c times the detached value to the reward: both together are exact.
    """
    return 1.0 - decisions.mean(rule.expected_rejection(logit, decisions))


def accepted_share(decisions: Decisions) -> torch.Tensor:
    """Share of each rollout's coins that came up accepted: `[B]`; 1 for a rollout without any.

    A property of the rollout, so it can be added to the reward: that is how acceptance enters when advantages are
    normalised, `center(rewards + c * accepted_share(decisions), normalize=True)` with `acceptance_coef=0`. Added to
    normalised advantages, c would change its worth with the spread of the rewards.
    """
    return 1.0 - decisions.mean((~decisions.accepted).to(decisions.tv.dtype))


def kl_to_target(rule: LearnedRule, logit: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Estimate KL(v || p) at every verified position from the emitted token alone: `[M]`, non-negative.

    A token emitted at a verified position, accepted or residual, is distributed as v. So p/v - 1 - log(p/v) is
    unbiased ("k3", http://joschu.net/blog/kl-approx.html). Its derivative is not: on average it is that of KL(p || v).
    The gradient is therefore that of log(p/v)^2 / 2, which is unbiased for KL(v || p) with visitation held fixed. Both
    hold where rollouts were drawn with `logit`. p is floored at the smallest normal number: a token that is impossible
    under p costs 87 nats in float32, not infinity.
    """
    excess = rule.log_excess(logit, decisions)
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


def leave_one_out(rewards: torch.Tensor, valid: torch.Tensor, group_size: int) -> torch.Tensor:
    """Advantages over the mean of the group's other valid rewards: `[B]`; 0 where there is no other, or none at all.

    Unlike in `center` no reward is part of its own baseline, and what a prompt alone decides adds no noise (arXiv
    2402.14740).

    Args:
        rewards: float `[B]`, of whole groups of `group_size` in a row. valid: bool `[B]`; others are left out.
    """
    rewards, valid = rewards.view(-1, group_size), valid.view(-1, group_size)
    known = torch.where(valid, rewards, 0.0)
    others = valid.sum(1, keepdim=True) - 1
    baseline = (known.sum(1, keepdim=True) - known) / others.clamp_min(1)
    return torch.where(valid & (others > 0), rewards - baseline, 0.0).flatten()


def diversed_loss(
    rule: LearnedRule,
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    settings: LossSettings,
    num_sequences: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss: minus reward, minus `acceptance_coef` times acceptance, plus `kl_coef` times KL.

    All terms are sums over rollouts with one divisor, so the losses of the parts of a batch add up to that of the
    whole. Arguments as in `policy_terms`.

    Returns:
        The loss, a scalar, and detached scalars of this part of the batch; nan where there is no decision:
        `policy_loss`; `ratio`, `clip_fraction` (decisions without gradient), `weight` and `kl`, means over decisions;
        `expected_acceptance`, mean over rollouts that have one.
    """
    divisor = decisions.num_sequences if num_sequences is None else num_sequences
    terms = policy_terms(rule, logit, old_logit, decisions, advantage, settings.clip_range, num_sequences)
    policy, ratio, clipped = terms
    acceptance, kl = expected_acceptance(rule, logit, decisions), kl_to_target(rule, logit, decisions)
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
        "weight": rule.weight(logit, decisions).mean(),
        "expected_acceptance": acceptance[decisions.counts() > 0].mean(),
        "kl": kl.mean(),
    }
    return loss, {name: value.detach() for name, value in metrics.items()}


def policy_terms(
    rule: LearnedRule,
    logit: torch.Tensor,
    old_logit: torch.Tensor,
    decisions: Decisions,
    advantage: torch.Tensor,
    clip_range: float | None = None,
    num_sequences: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the policy loss, and per decision the importance ratio and whether clipping removed its gradient.

    The loss is minus the ratio times the advantage, summed over decisions, as a mean over rollouts.

    Where `logit` is `old_logit` the gradient is plain REINFORCE. Further away one ratio per decision is PPO's local
    approximation (arXiv 1707.06347, eq. 7); unbiased would be the product of a rollout's ratios.

    Args:
        rule: scores decisions. logit, old_logit: float `[M]`, the head's output now and when the rollouts were drawn.
        advantage: float `[B]`, one per rollout; see `center`.
        clip_range: a decision whose ratio has left 1 +- clip_range in the advantage's direction has no gradient.
        num_sequences: divisor, if not `decisions.num_sequences`: for a part of a batch, the size of the whole.
    """
    # Also a guard: an advantage per decision would be indexed without complaint.
    assert advantage.shape == (decisions.num_sequences,), "one advantage per rollout"
    change = rule.log_prob(logit, decisions) - rule.log_prob(old_logit.detach(), decisions)
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
