"""Verifiers that mix p and q with weights on the target distribution (arXiv 2604.07622), and bounds on their bias.

With a weight w(x) per token, x ~ q is accepted with probability 1 - w(x) + w(x) min(1, p(x)/q(x)). A rejected token is
replaced by a draw from norm((p - q)+). The rejection probability is R = sum w (q - p)+, and

    v = q - w (q - p)+ + R norm((p - q)+)

At every token v lies between p and q. TV(q, v) = R and TV(v, p) = sum (1 - w) (q - p)+ add up to TV(p, q), so no
emitted distribution with the same TV(v, p) has a lower rejection probability. With one weight for all tokens, v is the
mixture w p + (1 - w) q of arXiv 2604.07622.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import acceptance, total_variation
from hf_diversed.verifiers.base import (
    LIMITS,
    SETTINGS,
    Verifier,
    accept_best,
    check_range,
    read_numbers,
    target_residual,
)


PerRowSetting = float | list[float] | torch.Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights on the target distribution for one block.

    Attributes:
        weight: float32 `[B, G]` in [0, 1], the weight of the draft token.
        tv: float32 `[B, G]`, TV(p, q), if already computed.
        inputs: see `Trace.inputs`.
        per_token: maps p and q, float32 `[B, G, V]`, to the weight of every token, same shape. None if all tokens of a
            position have the same weight.
    """

    weight: torch.Tensor
    tv: torch.Tensor | None = None
    inputs: dict[str, torch.Tensor] | None = None
    per_token: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None

    def mixture_weight(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Return w with v = w p + (1 - w) q at every token: `[B, G, 1]`, or `[B, G, V]` with weights per token.

        It is w(x) where p < q, else R / TV(p, q), because the rejected mass is divided in proportion to p - q.
        """
        if self.per_token is None:
            return self.weight[..., None]
        weight = self.per_token(p, q)
        return torch.where(p < q, weight, average_weight(weight, p, q, self.weight)[..., None])

    def bias(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor | None:
        """Return `Trace.bias`, `[B, G]`: None for weights per position.

        Args:
            p, q: `[B, G]`, probabilities of the draft tokens.
        """
        if self.per_token is None:
            return None
        return (1.0 - self.weight) * (1.0 - acceptance(p, q))

    def changed(self, change: Callable[..., torch.Tensor], *settings: torch.Tensor) -> "Weights":
        """Return a copy with `change(weight, *settings)` as weights; settings are `[B, G]` or `[B, 1]`."""
        before = self.per_token

        def per_token(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
            assert before is not None
            return change(before(p, q), *(values[..., None] for values in settings))

        return replace(self, weight=change(self.weight, *settings), per_token=None if before is None else per_token)


class MixtureVerifier(Verifier):
    """Base class of verifiers with an emitted distribution v between p and q; subclasses implement `weights`.

    Sampling uses p(x), q(x) and w at the draft tokens only, as the residual distribution norm(max(p - q, 0)) does not
    depend on w. Greedy: accept x iff it is argmax v, with p and q at temperature 1; else emit argmax v. The module
    docstring defines v for weights per position and per token. Each bound is one value, or one per prompt or row.
    The same holds for other attributes named in `row_settings`, which are None or a list of numbers.

    Args:
        max_bias: in [0, 1]. Raises w until TV(v, p) <= max_bias at every draft position. In greedy decoding
            p(emitted) >= max p - 2 max_bias.
        max_ratio: at least 1. Raises w per token until v <= max_ratio p. 1 is lossless, inf is no bound.
    """

    needs_input_ids = False
    row_settings: tuple[str, ...] = LIMITS
    has_emitted_probs = True

    def __init__(
        self,
        max_bias: PerRowSetting | None = None,
        max_ratio: PerRowSetting | None = None,
    ):
        self.max_bias = None if max_bias is None else per_row_values("max_bias", max_bias)
        self.max_ratio = None if max_ratio is None else per_row_values("max_ratio", max_ratio)

    def check(self, context: DecodingContext) -> None:
        for name in dict.fromkeys((*LIMITS, *self.row_settings)):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, context.num_prompts, context.batch_size):
                allowed = f"one value or one per prompt ({context.num_prompts})"
                raise ValueError(f"`{name}` must be {allowed}, got {len(values)}.")

    def settings(self) -> dict[str, object]:
        return {name: value for name, value in super().settings().items() if not (name in LIMITS and value is None)}

    def row_values(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the settings per row, repeated for `num_return_sequences` in the order of `generate`."""
        columns = {}
        for name in dict.fromkeys((*LIMITS, *self.row_settings)):
            values = getattr(self, name)
            if values is not None:
                column = torch.tensor(values, dtype=torch.float32, device=device)
                columns[name] = column.repeat_interleave(batch_size // len(values))[:, None]
        return columns

    def weights(self, draft: DraftOutput, target: TargetOutput, row_values: dict[str, torch.Tensor]) -> Weights:
        """Return the weights at the draft positions; `row_values` are the per-row settings, `[B, 1]` each.

        If `Weights.weight` depends on the draft token, `Weights.per_token` must be set and consistent with it.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement weights")

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        row_values = self.row_values(len(draft.tokens), draft.tokens.device) if row_values is None else row_values
        weights = limit_bias(self.weights(draft, target, row_values), draft, target, row_values)

        def emitted_probs() -> torch.Tensor:
            p, q = target.probs()[:, :-1], draft.probs()
            return torch.lerp(q, p, weights.mixture_weight(p, q))

        trace = Trace(
            weight=weights.weight,
            tv=weights.tv,
            inputs=weights.inputs,
            emitted_probs=emitted_probs,
        )
        if draft.sampled:
            p_drafted, q_drafted = target.prob(draft.tokens), draft.prob(draft.tokens)
            accept_prob = acceptance(p_drafted, q_drafted, weights.weight)
            trace = replace(trace, bias=weights.bias(p_drafted, q_drafted))
            return Verdict(accept_prob, target_residual(draft, target), trace)
        p, q = target.probs()[:, :-1], draft.probs()
        w = weights.mixture_weight(p, q)
        v = torch.lerp(q, p, w)
        # At w = 0 and 1 take the argmax of scores: softmax may round two different scores to the same probability.
        mass, best = v.max(dim=-1)
        best = torch.where((w == 1.0).all(-1), target.scores[:, :-1].argmax(-1), best)
        best = torch.where((w == 0.0).all(-1), draft.tokens, best)
        rows = torch.arange(v.shape[0], device=v.device)

        def replacement(positions: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(v[:, 0]).scatter_(-1, best[rows, positions, None], 1.0)

        trace = replace(trace, bias=None if weights.per_token is None else total_variation(v, p))
        return Verdict(accept_best(best, draft.tokens, mass), replacement, trace)


def per_row_values(name: str, setting: PerRowSetting) -> list[float]:
    """Return one of `SETTINGS` as a list of values. Raises ValueError unless it is numbers in range, at least one."""
    (low, high, advice), values = SETTINGS[name], read_numbers(setting)
    if values is None:
        raise ValueError(f"`{name}` must be a number or one per row, got {setting!r:.200}. {advice}")
    if not values:
        raise ValueError(f"`{name}` must be one value or one per row, got an empty list. {advice}")
    return [check_range(name, value, low, high, advice) for value in values]


def average_weight(weight: torch.Tensor, p: torch.Tensor, q: torch.Tensor, where_equal: torch.Tensor) -> torch.Tensor:
    """Return R / TV(p, q), `[B, G]`: the weight per position with the same rejection probability and TV(v, p).

    Exactly 0 or 1 where all weights are.

    Args:
        weight, p, q: float32 `[B, G, V]`.
        where_equal: float32 `[B, G]`, the result where p = q.
    """
    deficit = (q - p).clamp_(min=0.0)
    tv = deficit.sum(-1)
    bias = deficit.addcmul_(weight, deficit, value=-1.0).sum(-1)
    average = 1.0 - bias / tv.clamp_min(torch.finfo(tv.dtype).tiny)
    return torch.where(tv > 0.0, average, where_equal)


def limit_bias(
    weights: Weights,
    draft: DraftOutput,
    target: TargetOutput,
    row_values: dict[str, torch.Tensor],
) -> Weights:
    """Return the weights, raised to satisfy the bounds in `row_values`."""
    if "max_ratio" in row_values:
        weights = _cap_ratio(weights, draft, target, row_values["max_ratio"])
    if "max_bias" not in row_values:
        return weights
    tv = total_variation(target.probs()[:, :-1], draft.probs()) if weights.tv is None else weights.tv
    return replace(weights, tv=tv).changed(cap_bias, tv, row_values["max_bias"])


def _cap_ratio(weights: Weights, draft: DraftOutput, target: TargetOutput, max_ratio: torch.Tensor) -> Weights:
    """Raise the weights to those of lenience 1 / max_ratio, so that v <= max_ratio p at every token."""
    lenience = 1.0 / max_ratio
    drafted = lenient_weight(target.prob(draft.tokens), draft.prob(draft.tokens), lenience)

    def per_token(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        before = weights.weight[..., None] if weights.per_token is None else weights.per_token(p, q)
        return at_least(before, lenient_weight(p, q, lenience[..., None]))

    return replace(weights, weight=at_least(weights.weight, drafted), per_token=per_token)


def at_least(weight: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return max(weight, floor) for a floor in [0, 1]; 1 where the floor is 1, even if the weight is NaN."""
    return torch.where(floor == 1.0, floor, torch.maximum(weight, floor))


def lenient_weight(p: torch.Tensor, q: torch.Tensor, lenience: torch.Tensor) -> torch.Tensor:
    """Return the weight per token that is equivalent to lenience: (1 - p / (lenience q))+ / (1 - p / q)+.

    Lenience accepts a token with probability min(1, p / (lenience q)) (arXiv 2211.17192, A.5); 1 is lossless, 0
    accepts every token.

    Args:
        p, q: float32, same shape.
        lenience: float32 in [0, 1], broadcasts.
    """
    ratio = acceptance(p, q)
    inside = (1.0 - ratio / lenience) / (1.0 - ratio)
    return torch.where(lenience == 1.0, 1.0, torch.where(ratio < lenience, inside, 0.0))


def cap_bias(weight: torch.Tensor, tv: torch.Tensor, max_bias: torch.Tensor) -> torch.Tensor:
    """Return the least weight >= `weight` with (1 - weight) * tv <= max_bias.

    Args:
        weight, tv: float32 `[B, G]`.
        max_bias: float32, broadcasts.
    """
    floor = 1.0 - max_bias / tv.clamp_min(torch.finfo(tv.dtype).tiny)
    return at_least(weight, floor.clamp(0.0, 1.0))
