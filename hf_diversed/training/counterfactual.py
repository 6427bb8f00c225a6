"""Training of a head on the labels of `training/labels.py`, by regression of the cost of keeping a draft token.

The head's logit is sharpness * (predicted cost - price) / spread, where spread is the standard deviation of predicted
costs. With a large sharpness, a token is accepted if its predicted cost is below the price. To first order, this
accepts the largest share of tokens for a given mean cost. Strictness s moves the price by -spread * logit(s).
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.training.labels import ABOUT_PAIR, Labels
from hf_diversed.training.loading import seeded_head


_PENALTIES = torch.logspace(-1, 5, 25, dtype=torch.float64)
_STEPS, _EVERY, _LEARNING_RATE, _WEIGHT_DECAY = 400, 10, 5e-3, 0.1


@dataclass(frozen=True)
class FitSettings:
    """Settings of `fit_head`.

    Args:
        head_type: "linear" (ridge regression) or "mlp" (one hidden layer of `intermediate_size` units).
        lookahead: number of later draft tokens to use; None for all that were recorded.
        target_after: whether to use the target's hidden state after the token; None if it was recorded.
        kept_share: share of rejected draft tokens below the price at strictness 0.5, in (0, 1).
        sharpness: change of the logit per standard deviation of predicted costs.
        folds: number of folds of the cross-validation over prompts, which chooses the penalty or, for an "mlp", the
            number of updates.
        seed: seed of the folds and the initial weights.
    """

    head_type: str = "linear"
    intermediate_size: int = 32
    lookahead: int | None = None
    target_after: bool | None = None
    kept_share: float = 0.5
    sharpness: float = 10.0
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.kept_share < 1.0:
            raise ValueError(f"kept_share must lie in (0, 1), got {self.kept_share!r}.")
        if not self.sharpness > 0.0:
            raise ValueError(f"sharpness must be above 0, got {self.sharpness!r}.")
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2, got {self.folds!r}.")


def fit_head(labels: Labels, settings: FitSettings) -> tuple[DiversedHead, dict[str, Any]]:
    """Train a head on labels.

    Returns:
        The head, and a report: `r2`, the share of the labels' variance explained in cross-validation, `price` and
        `spread` in units of the score, `penalty` (for "linear") or `updates` (for "mlp"), and the numbers of labels
        and prompts.

    Raises:
        ValueError: if the labels lack an input, have fewer prompts than folds, or all have the same cost.
    """
    if bool((labels.cost == labels.cost[0]).all()):
        raise ValueError(
            f"all {len(labels.cost)} labels have the same cost, {float(labels.cost[0]):g}; collect labels of more "
            "prompts, or with longer completions."
        )
    head, inputs = _new_head(labels, settings)
    head.standardize(**inputs)
    values = ((head.concatenate(**inputs) - head.input_mean) / head.input_std).double()
    predicted, chosen = _cross_validate(head, values, labels.cost, folds(labels.prompt, settings))
    spread = predicted.std().clamp_min(1e-12)
    price = predicted.quantile(settings.kept_share)
    scale = float(settings.sharpness / spread)
    with torch.no_grad():
        head.out.weight.mul_(scale)
        head.out.bias.sub_(price).mul_(scale)
    return head.eval(), {
        "r2": r2(predicted, labels.cost),
        "price": float(price),
        "spread": float(spread),
        "penalty" if settings.head_type == "linear" else "updates": chosen,
        "num_labels": len(labels.cost),
        "num_prompts": len(labels.prompt.unique()),
    }


def _cross_validate(
    head: DiversedHead, values: torch.Tensor, goal: torch.Tensor, fold: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """Store the regression of `goal` on all labels in the head. Return the held-out predictions, float64 `[M]`, and
    the penalty or number of updates with the least error on held-out prompts."""
    regress = _ridge if head.dense is None else _mlp
    candidates = held_out = torch.empty(0, dtype=torch.float64)  # held_out: one row per candidate
    for number in range(int(fold.max()) + 1):
        inside, outside = fold != number, fold == number
        candidates, predicted = regress(head, values[inside], goal[inside], values[outside])
        held_out = torch.zeros(len(candidates), len(goal), dtype=torch.float64) if not len(held_out) else held_out
        held_out[:, outside] = predicted
    best = int((held_out - goal).square().mean(-1).argmin())
    regress(head, values, goal, values[:1], best)
    return held_out[best], float(candidates[best])


def _new_head(labels: Labels, settings: FitSettings) -> tuple[DiversedHead, dict[str, torch.Tensor]]:
    """Return an untrained head and its inputs on the labels."""
    inputs, about = dict(labels.inputs), labels.settings
    recorded = inputs["lookahead"].shape[1] if "lookahead" in inputs else 0
    window = recorded if settings.lookahead is None else settings.lookahead
    target_after = "target_after" in inputs if settings.target_after is None else settings.target_after
    if window > recorded or (target_after and "target_after" not in inputs):
        raise ValueError(
            f"lookahead={window} and target_after={target_after} need labels with these inputs; the file has a "
            f"lookahead of {recorded} and {'a' if 'target_after' in inputs else 'no'} state after the token."
        )
    used = ["features", "token"] + ["lookahead"] * (window > 0) + ["target_after"] * target_after
    inputs = {name: inputs[name][:, :window] if name == "lookahead" else inputs[name] for name in used}
    sampling = about["sampling"]
    pair: dict[str, Any] = {name: about[name] for name in ABOUT_PAIR}
    config = DiversedHeadConfig(
        **pair,
        task=about["task"],
        head_type=settings.head_type,
        intermediate_size=settings.intermediate_size,
        features="distribution",
        token_features=True,
        lookahead=window,
        target_after=target_after,
        strictness_slope=settings.sharpness,
        num_assistant_tokens=sampling["num_assistant_tokens"],
        training_temperature=sampling["temperature"],
    )
    return seeded_head(config, settings.seed), inputs


def folds(prompt: torch.Tensor, settings: FitSettings) -> torch.Tensor:
    """Return the fold of each label, long `[M]`; all labels of a prompt share one."""
    prompts, index = prompt.unique(return_inverse=True)
    if len(prompts) < settings.folds:
        raise ValueError(f"labels of at least {settings.folds} prompts are needed, one per fold, got {len(prompts)}.")
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(settings.seed))
    return (order % settings.folds)[index]


def r2(predicted: torch.Tensor, cost: torch.Tensor) -> float:
    """Return the share of the costs' variance that predictions explain."""
    return 1.0 - float((predicted - cost).square().mean() / cost.var(correction=0).clamp_min(1e-12))


def _ridge(
    head: DiversedHead, values: torch.Tensor, cost: torch.Tensor, other: torch.Tensor, chosen: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the penalties `[P]` and the predictions for `other` with each, `[P, len(other)]`. If `chosen` is an index
    of a penalty, store its regression in the head."""
    centre, mean = values.mean(0), cost.mean()
    values = values - centre
    scales, basis = torch.linalg.eigh(values.T @ values)
    along = basis.T @ (values.T @ (cost - mean))
    slopes = (along / (scales.clamp_min(0.0) + _PENALTIES[:, None])) @ basis.T  # [P, D]
    if chosen is not None:
        with torch.no_grad():
            head.out.weight.copy_(slopes[chosen][None])
            head.out.bias.copy_(mean - slopes[chosen] @ centre)
    return _PENALTIES, mean + slopes @ (other - centre).T


def _mlp(
    head: DiversedHead, values: torch.Tensor, cost: torch.Tensor, other: torch.Tensor, chosen: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Same as `_ridge`, with numbers of AdamW updates instead of penalties and with standardized labels."""
    assert head.dense is not None
    mean, deviation = cost.mean(), cost.std().clamp_min(1e-12)
    start = [parameter.detach().double() for parameter in (head.dense.weight, head.dense.bias)]
    parameters = [*start, torch.zeros(1, len(start[1]), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    parameters = [parameter.clone().requires_grad_() for parameter in parameters]

    def predict(inputs: torch.Tensor) -> torch.Tensor:
        units = F.gelu(F.linear(inputs, parameters[0], parameters[1]))
        return F.linear(units, parameters[2], parameters[3]).squeeze(-1)

    updates = torch.arange(_EVERY, _STEPS + 1, _EVERY)
    optimizer = torch.optim.AdamW(parameters, lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    predictions = []
    last = _STEPS if chosen is None else int(updates[chosen])
    for step in range(1, last + 1):
        optimizer.zero_grad()
        F.mse_loss(predict(values), (cost - mean) / deviation).backward()
        optimizer.step()
        if step % _EVERY == 0:
            predictions.append(mean + deviation * predict(other).detach())
    if chosen is not None:
        with torch.no_grad():
            head.dense.weight.copy_(parameters[0])
            head.dense.bias.copy_(parameters[1])
            head.out.weight.copy_(parameters[2] * deviation)
            head.out.bias.copy_(parameters[3] * deviation + mean)
    return updates, torch.stack(predictions)
