"""The training objective of a head: a policy gradient of the reward, plus an acceptance term.

The actions are the accept or reject decisions; `AcceptanceModel` computes their log-probabilities. This module is
independent of models, vocabularies and tasks.
Shapes: B rollouts, M decisions. Probabilities and log-probabilities have the dtype of the records (float32).
"""

import torch

from hf_diversed.training.acceptance import AcceptanceModel, Decisions


# exp() overflows float32 at 88, and 0 * inf in the gradient of an unused branch is NaN.
_MAX_LOG_RATIO = 20.0


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
