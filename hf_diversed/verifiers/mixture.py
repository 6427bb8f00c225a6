"""Verification against `v = w p + (1 - w) q`, for any rule that supplies a weight per position (arXiv 2604.07622)."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import acceptance, total_variation
from hf_diversed.verifiers.base import Verifier, check_range, keep_best, target_residual


Values = float | list[float] | torch.Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """What a mixing rule says of one block.

    Attributes:
        weight: float32 `[B, G]` in [0, 1], on the target.
        tv: float32 `[B, G]`, TV(p, q), if it was needed on the way. inputs: see `Trace.inputs`.
    """

    weight: torch.Tensor
    tv: torch.Tensor | None = None
    inputs: dict[str, torch.Tensor] | None = None


class MixtureVerifier(Verifier):
    """Base of the mixing rules; subclasses implement `weights`.

    Sampling needs p(x), q(x) and w at the drafted tokens only; norm(max(v - q, 0)) = norm(max(p - q, 0)) does not
    depend on w. Greedy decoding keeps x iff it is the argmax of v, both laws taken at temperature 1, and replaces it
    by that argmax.

    Args:
        max_bias: in [0, 1], one value or one per row: raises w until TV(v, p) <= max_bias at every drafted token,
            after everything else. In greedy decoding it keeps p(emitted) >= max p - 2 max_bias.
        bias_budget: at least 0, one value or one per row: the sum of TV(v, p) over a sequence never exceeds it. It is
            spent as it comes, and once it is gone w is 1. The law of a whole sampled sequence then stays within it of
            the target's, in total variation.
    """

    needs_input_ids = False
    row_settings: tuple[str, ...] = ("max_bias", "bias_budget")
    has_law = True

    def __init__(self, max_bias: Values | None = None, bias_budget: Values | None = None):
        self.max_bias = (
            None if max_bias is None else per_row_values("max_bias", max_bias, "0 is lossless, 1 caps nothing.")
        )
        advice = "0 is lossless; 1 and more bounds nothing that total variation could tell."
        self.bias_budget = (
            None if bias_budget is None else per_row_values("bias_budget", bias_budget, advice, high=float("inf"))
        )
        self.state_width = 0 if self.bias_budget is None else 1  # bias so far

    def check(self, context: DecodingContext) -> None:
        check_row_values(context, diversed_max_bias=self.max_bias, diversed_bias_budget=self.bias_budget)

    def settings(self) -> dict[str, object]:
        limits = ("max_bias", "bias_budget")
        return {
            name: value
            for name, value in super().settings().items()
            if name != "state_width" and not (name in limits and value is None)
        }

    def dials(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        dials = {}
        if self.max_bias is not None:
            dials["max_bias"] = per_row(self.max_bias, batch_size, device)
        if self.bias_budget is not None:
            dials["bias_budget"] = per_row(self.bias_budget, batch_size, device, _accurate(device))
        return dials

    def weights(self, draft: DraftOutput, target: TargetOutput, dials: dict[str, torch.Tensor]) -> Weights:
        """The weight at every drafted position; `dials` are those of this rule, `[B, 1]` each.

        The weight may depend on the prefix only, never on the drafted token: otherwise v is no law.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement weights")

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        state: torch.Tensor | None = None,
        dials: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        dials = self.dials(len(draft.tokens), draft.tokens.device) if dials is None else dials
        said, state = limit_bias(self.weights(draft, target, dials), draft, target, state, dials)
        weight = said.weight

        def law() -> torch.Tensor:
            return torch.lerp(draft.probs(), target.probs()[:, :-1], weight[..., None])

        trace = Trace(weight=weight, tv=said.tv, inputs=said.inputs, law=law)
        if draft.sampled:
            accept_prob = acceptance(target.prob(draft.tokens), draft.prob(draft.tokens), weight)
            return Verdict(accept_prob, target_residual(draft, target), state, trace)
        v = law()
        # The ends follow the scores: softmax can round two different scores to one probability.
        mass, best = v.max(dim=-1)
        best = torch.where(weight == 1.0, target.scores[:, :-1].argmax(-1), best)
        best = torch.where(weight == 0.0, draft.tokens, best)
        rows = torch.arange(v.shape[0], device=v.device)

        def one_hot_best(positions: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(v[:, 0]).scatter_(-1, best[rows, positions, None], 1.0)

        return Verdict(keep_best(best, draft.tokens, mass), one_hot_best, state, trace)


def limit_bias(
    said: Weights,
    draft: DraftOutput,
    target: TargetOutput,
    state: torch.Tensor | None,
    dials: dict[str, torch.Tensor],
) -> tuple[Weights, torch.Tensor | None]:
    """Raise weights to what `max_bias` and `bias_budget` among the dials allow; also the budget's new state."""
    if "max_bias" not in dials and "bias_budget" not in dials:
        return said, None
    tv = total_variation(target.probs()[:, :-1], draft.probs()) if said.tv is None else said.tv
    weight, state_after = said.weight, None
    if "max_bias" in dials:
        weight = cap_bias(weight, tv, dials["max_bias"])
    if "bias_budget" in dials:
        budget = dials["bias_budget"]
        spent = torch.zeros_like(budget) if state is None else state
        weight, total = spend_bias(weight, tv, draft.active, budget, spent)
        state_after = F.pad(total, (0, 1), mode="replicate")[..., None]  # a rejected position has spent its bias, too
    return replace(said, weight=weight, tv=tv), state_after


def cap_bias(weight: torch.Tensor, tv: torch.Tensor, max_bias: torch.Tensor) -> torch.Tensor:
    """Raise a weight until (1 - weight) * tv <= max_bias.

    Args:
        weight, tv: float32 `[B, G]`. `max_bias`: float32, broadcasts.
    """
    floor = 1.0 - max_bias / tv.clamp_min(torch.finfo(tv.dtype).tiny)
    return torch.maximum(weight, floor.clamp(0.0, 1.0))


def spend_bias(
    weight: torch.Tensor, tv: torch.Tensor, active: torch.Tensor, budget: torch.Tensor, spent: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Raise weights from where a budget runs out, so that the sum of (1 - weight) * tv stays within it.

    Args:
        weight, tv: float32 `[B, G]`. active: bool `[B, G]`; elsewhere nothing is spent.
        budget, spent: `[B, 1]`, in the precision to account in.

    Returns:
        float32 `[B, G]`, and the sum spent after each position, `[B, G]` in the precision of `budget`.
    """
    exact_weight, exact_tv = weight.to(budget.dtype), tv.to(budget.dtype)
    wanted = torch.where(active, (1.0 - exact_weight) * exact_tv, 0.0)
    # Spending as it comes: after each position the sum of the wishes, or all there is.
    reached = torch.minimum(spent + wanted.cumsum(-1), budget)
    allowed = reached.diff(dim=-1, prepend=spent).clamp_min(0.0)
    floor = 1.0 - allowed / exact_tv.clamp_min(torch.finfo(torch.float32).tiny)
    rounded = floor.clamp(0.0, 1.0).float()
    up = torch.nextafter(rounded, torch.ones_like(rounded))
    rounded = torch.where(rounded.to(floor.dtype) < floor, up, rounded)  # never down: that would overspend
    limited = torch.where(allowed < wanted, torch.maximum(weight, rounded), weight)
    biases = torch.where(active, (1.0 - limited.to(budget.dtype)) * exact_tv, 0.0)
    return limited, spent + biases.cumsum(-1)


def per_row_values(name: str, given: Values, advice: str, high: float = 1.0) -> list[float]:
    """A setting as a list of one value or one per row, each in [0, high]. Raises ValueError."""
    values = torch.as_tensor(given, dtype=torch.float64).flatten().tolist()
    if not values:
        raise ValueError(f"`{name}` must be one value or one per row, got none. {advice}")
    return [check_range(name, value, 0.0, high, advice) for value in values]


def check_row_values(context: DecodingContext, **settings: list[float] | None) -> None:
    """Refuse settings that fit neither all rows nor each. Raises ValueError."""
    for name, values in settings.items():
        if values is not None and len(values) not in (1, context.num_prompts, context.batch_size):
            raise ValueError(f"{name} must be one value or one per prompt ({context.num_prompts}), got {len(values)}.")


def per_row(
    values: list[float], batch_size: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """`[B, 1]`; repeated in place for `num_return_sequences`, as `generate` repeats the prompts."""
    column = torch.tensor(values, dtype=dtype, device=device)
    return column.repeat_interleave(batch_size // len(values))[:, None]


def _accurate(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # which has no float64
