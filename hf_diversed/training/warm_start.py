"""A head to start from: what a draft's own tokens cost the reward, regressed on recorded rollouts.

Policy gradients learn from whole rollouts, and slowly where a head sees hundreds of inputs: the score of every
position carries the noise of all others. Before the first update rollouts can be asked a simpler question. Each
token that lossless decoding would have rejected has some chance to spoil what the reward is for; which ones do is
an additive model of the reward's logarithm, which a regression finds. The weight that follows from it is where the
policy gradient starts. This is ours, not of arXiv 2604.07622. Letters: B rollouts, N tokens that may be at fault.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator

from hf_diversed.head import DiversedHead
from hf_diversed.training.objective import Decisions


SHARPNESS = 4.0  # of the weight around the harm at which relaxing stops to pay
PENALTIES = (1e-3, 3e-3, 1e-2, 1e-1)
_HELD_OUT = 4  # every fourth prompt
_ITERATIONS = 40
_START = -2.0
_LEAST_SHARE = 1e-3
_LEAST_LOSS = 1e-6  # a rollout that is sure to keep its reward would make the loss of any infinite
_LEAST_RANGE = 1e-6
_MOST_HARM = 20.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """The tokens of B rollouts that lossless decoding might have rejected, and what became of the rollouts.

    Attributes:
        sequence: long `[N]`, the rollout. share: float `[N]`, chance that lossless decoding would have rejected it.
        inputs: what the head saw there, by name, `[N, ...]`.
        reward: float `[B]`, nan where there is none. held_out: bool `[B]`, which only choose the penalty.
        num_decisions: of all rollouts.
    """

    sequence: torch.Tensor
    share: torch.Tensor
    inputs: dict[str, torch.Tensor]
    reward: torch.Tensor
    held_out: torch.Tensor
    num_decisions: int


def relaxed_share(weight: torch.Tensor, decisions: Decisions) -> torch.Tensor:
    """Chance that lossless decoding, tossing the same coin, would have rejected the token: `[M]`; 0 at a rejection.

    An accepted y with p < q passed with probability v/q, and would have passed with p/q: what is left is 1 - p/v.

    Args:
        weight: float `[M]`, w that the rollouts were drawn with.
    """
    p, q = decisions.target_prob, decisions.draft_prob
    mixture = torch.lerp(q, p, weight.to(p)).clamp_min(torch.finfo(p.dtype).tiny)
    return torch.where(decisions.accepted & (p < q), 1.0 - p / mixture, 0.0)


def collect(
    weight: torch.Tensor,
    decisions: Decisions,
    inputs: dict[str, torch.Tensor],
    rewards: Sequence[float | None],
    prompts: Sequence[int],
) -> Evidence:
    """Evidence of one batch of rollouts, of the prompts of these numbers, a part of which is held out.

    Inputs are kept in half precision: the hidden states of all tokens to blame are many.
    """
    share = relaxed_share(weight, decisions)
    to_blame = share > _LEAST_SHARE
    return Evidence(
        decisions.sequence[to_blame],
        share[to_blame],
        {name: values[to_blame].half() for name, values in inputs.items()},
        torch.tensor([math.nan if reward is None else reward for reward in rewards], device=share.device),
        torch.tensor([number % _HELD_OUT == 0 for number in prompts], device=share.device),
        len(share),
    )


def join(parts: Sequence[Evidence]) -> Evidence:
    """The evidence of several batches; at least one."""
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part.reward))
    return Evidence(
        torch.cat([part.sequence + offset for part, offset in zip(parts, offsets)]),
        torch.cat([part.share for part in parts]),
        {name: torch.cat([part.inputs[name] for part in parts]) for name in parts[0].inputs},
        torch.cat([part.reward for part in parts]),
        torch.cat([part.held_out for part in parts]),
        sum(part.num_decisions for part in parts),
    )


def fit(head: DiversedHead, evidence: Evidence, coef: float, accelerator: Accelerator) -> float:
    """Set a new head whose inputs are standardised to the rule that the evidence speaks for. Equal rewards say nothing
    and leave it as it is.

    A rollout is expected to keep exp(-sum of share x harm) of the reward of rollouts without relaxed tokens, counted
    from the least reward seen. The head's output is fitted to the harm's logarithm by maximum likelihood, under the
    penalty on its weights that explains held-out rollouts best. Relaxing a position pays while its harm is below what
    it adds to the objective, `coef` / decisions per rollout: there the head is made to say w = 1/2.

    Args:
        coef: reward that full acceptance is worth.
        accelerator: of the processes, each with evidence of its own, that fit one head together.

    Returns:
        Mean cross-entropy in nats of held-out rewards, scaled to [0, 1].
    """
    known = evidence.reward[~evidence.reward.isnan()]
    if not len(known):
        raise ValueError("every reward of the warm-up is None: nothing can be learned from it.")
    ends = accelerator.gather(torch.stack([known.min(), -known.max()])[None])
    low, high = ends[:, 0].min().item(), -ends[:, 1].min().item()
    if high - low < _LEAST_RANGE:
        return 0.0
    model = _Model(head, evidence, (evidence.reward - low) / (high - low), accelerator)
    fresh = state(head)
    best_loss, best, intact = math.inf, fresh, 1.0
    for penalty in PENALTIES:
        head.load_state_dict(fresh)
        model.maximise_likelihood(penalty)
        loss = accelerator.reduce(model.loss(evidence.held_out)).item()
        if loss < best_loss:
            best_loss, best, intact = loss, state(head), math.exp(-F.softplus(model.base).item())
    head.load_state_dict(best)
    counts = torch.tensor([evidence.num_decisions, len(evidence.reward)], device=evidence.reward.device)
    decisions, rollouts = accelerator.reduce(counts).tolist()
    bearable = coef * rollouts / decisions / max((high - low) * intact, _LEAST_RANGE)
    with torch.no_grad():
        head.out.bias.sub_(math.log(math.expm1(min(max(bearable, _LEAST_LOSS), _MOST_HARM))))
        for value in (head.out.bias, head.out.weight):
            value.mul_(SHARPNESS)
    return best_loss


def state(head: DiversedHead) -> dict[str, torch.Tensor]:
    """A copy of all weights and buffers."""
    return {name: value.clone() for name, value in head.state_dict().items()}


class _Model:
    """The share of the reward that rollouts keep, by tokens to blame; `base` is what they lose without any.

    Both losses are in log units, as softplus of a head's logit or of `base`.
    """

    def __init__(self, head: DiversedHead, evidence: Evidence, kept: torch.Tensor, accelerator: Accelerator):
        self.head, self.evidence, self.kept, self.accelerator = head, evidence, kept, accelerator
        self.values = head.standardized(**evidence.inputs)
        self.base = torch.tensor(_START, device=kept.device)

    def loss(self, chosen: torch.Tensor) -> torch.Tensor:
        """This process's share of the mean cross-entropy of the chosen rollouts that have a reward."""
        chosen = chosen & ~self.kept.isnan()
        harm = self.evidence.share * F.softplus(self.head.logit(self.values))
        lost = F.softplus(self.base).expand(len(self.kept)).index_add(0, self.evidence.sequence, harm)
        kept, lost = self.kept[chosen], lost[chosen].clamp_min(_LEAST_LOSS)
        losses = kept * lost - (1.0 - kept) * torch.log(-torch.expm1(-lost))
        return losses.sum() / self.accelerator.reduce(chosen.sum()).clamp_min(1)

    def maximise_likelihood(self, penalty: float) -> None:
        """Fit head and base to the rollouts that are not held out, from the start."""
        self.base = torch.tensor(_START, device=self.kept.device, requires_grad=True)
        with torch.no_grad():
            self.head.out.bias.fill_(_START)
        parameters = [*self.head.parameters(), self.base]
        optimizer = torch.optim.LBFGS(parameters, max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = self.loss(~self.evidence.held_out)
                loss.backward()
            # Processes add up their shares of loss and gradient, so that all take the same steps.
            gradients = [value.grad for value in parameters]
            total = self.accelerator.reduce(
                torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)])
            )
            for gradient, part in zip(gradients, total[1:].split([gradient.numel() for gradient in gradients])):
                gradient.copy_(part.view_as(gradient))
            with torch.no_grad():
                for value in (value for value in parameters if value.dim() > 1):
                    total[0] += penalty * value.square().sum()
                    value.grad += 2.0 * penalty * value
            return total[0]

        optimizer.step(closure)
        self.base = self.base.detach()
