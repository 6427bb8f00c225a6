"""Base class of verifiers that mix p and q with weights on the target distribution (arXiv 2604.07622)."""

from dataclasses import replace

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import acceptance, total_variation
from hf_diversed.verifiers.base import Verifier, check_range, keep_best, target_residual
from hf_diversed.verifiers.weights import Weights, limit_bias


Values = float | list[float] | torch.Tensor
LIMITS = ("max_bias", "bias_budget", "max_ratio")


class MixtureVerifier(Verifier):
    """Base class of verifiers with an emitted distribution v between p and q; subclasses implement `weights`.

    Sampling uses p(x), q(x) and w at the draft tokens only, as the residual distribution norm(max(p - q, 0)) does not
    depend on w. Greedy: accept x iff it is argmax v, with p and q at temperature 1; else emit argmax v. `weights.py`
    defines v for weights per position and per token.

    Args:
        max_bias: in [0, 1], one value or one per row. Raises w until TV(v, p) <= max_bias at every draft position. In
            greedy decoding p(emitted) >= max p - 2 max_bias.
        bias_budget: at least 0, one value or one per row. Bounds the sum of TV(v, p) over a sequence: w is unchanged
            until the budget is used up, then 1. It also bounds the total variation between the emitted and the target
            distribution of whole sampled sequences.
        max_ratio: in [0, 1], one value or one per row. Raises w per token until v <= p / max_ratio. 1 is lossless, 0
            is no bound.
    """

    needs_input_ids = False
    row_settings: tuple[str, ...] = ("max_bias", "bias_budget", "max_ratio")
    has_emitted_probs = True

    def __init__(
        self,
        max_bias: Values | None = None,
        bias_budget: Values | None = None,
        max_ratio: Values | None = None,
    ):
        self.max_bias = (
            None if max_bias is None else per_row_values("max_bias", max_bias, "0 is lossless, 1 caps nothing.")
        )
        advice = "0 is lossless; 1 and more bounds nothing that total variation could tell."
        self.bias_budget = (
            None if bias_budget is None else per_row_values("bias_budget", bias_budget, advice, high=float("inf"))
        )
        advice = "1 is lossless, 0 bounds nothing; for at most twice the target's probability say 0.5."
        self.max_ratio = None if max_ratio is None else per_row_values("max_ratio", max_ratio, advice)
        self.state_width = 0 if self.bias_budget is None else 1  # the sum of TV(v, p) so far

    def check(self, context: DecodingContext) -> None:
        limits = {f"diversed_{name}": getattr(self, name) for name in LIMITS}
        check_row_values(context, **limits)

    def settings(self) -> dict[str, object]:
        return {
            name: value
            for name, value in super().settings().items()
            if name != "state_width" and not (name in LIMITS and value is None)
        }

    def dials(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        dials = {}
        if self.max_bias is not None:
            dials["max_bias"] = per_row(self.max_bias, batch_size, device)
        if self.bias_budget is not None:
            dials["bias_budget"] = per_row(self.bias_budget, batch_size, device, _accurate(device))
        if self.max_ratio is not None:
            dials["max_ratio"] = per_row(self.max_ratio, batch_size, device)
        return dials

    def weights(self, draft: DraftOutput, target: TargetOutput, dials: dict[str, torch.Tensor]) -> Weights:
        """Return the weights at the draft positions; `dials` are the per-row settings, `[B, 1]` each.

        `Weights.weight` may depend on the draft token only if `Weights.per_token` is set and consistent with it.
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
        weights, state = limit_bias(self.weights(draft, target, dials), draft, target, state, dials)

        def emitted_probs() -> torch.Tensor:
            p, q = target.probs()[:, :-1], draft.probs()
            return torch.lerp(q, p, weights.mixing(p, q))

        trace = Trace(weight=weights.weight, tv=weights.tv, inputs=weights.inputs, emitted_probs=emitted_probs)
        if draft.sampled:
            of_p, of_q = target.prob(draft.tokens), draft.prob(draft.tokens)
            accept_prob = acceptance(of_p, of_q, weights.weight)
            trace = replace(trace, bias=weights.bias(of_p, of_q))
            return Verdict(accept_prob, target_residual(draft, target), state, trace)
        p, q = target.probs()[:, :-1], draft.probs()
        mixing = weights.mixing(p, q)
        v = torch.lerp(q, p, mixing)
        # At w = 0 and 1 take the argmax of scores: softmax may round two different scores to the same probability.
        mass, best = v.max(dim=-1)
        best = torch.where((mixing == 1.0).all(-1), target.scores[:, :-1].argmax(-1), best)
        best = torch.where((mixing == 0.0).all(-1), draft.tokens, best)
        rows = torch.arange(v.shape[0], device=v.device)

        def one_hot_best(positions: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(v[:, 0]).scatter_(-1, best[rows, positions, None], 1.0)

        trace = replace(trace, bias=None if weights.per_token is None else total_variation(v, p))
        return Verdict(keep_best(best, draft.tokens, mass), one_hot_best, state, trace)


def per_row_values(name: str, given: Values, advice: str, high: float = 1.0) -> list[float]:
    """Return a setting as a list of one value or one per row. Raises ValueError outside of [0, high]."""
    values = torch.as_tensor(given, dtype=torch.float64).flatten().tolist()
    if not values:
        raise ValueError(f"`{name}` must be one value or one per row, got none. {advice}")
    return [check_range(name, value, 0.0, high, advice) for value in values]


def check_row_values(context: DecodingContext, **settings: list[float] | None) -> None:
    """Raise ValueError if a setting has neither one value nor one per prompt or row."""
    for name, values in settings.items():
        if values is not None and len(values) not in (1, context.num_prompts, context.batch_size):
            raise ValueError(f"{name} must be one value or one per prompt ({context.num_prompts}), got {len(values)}.")


def per_row(
    values: list[float], batch_size: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return values as `[B, 1]`, repeated for `num_return_sequences` in the order of `generate`."""
    column = torch.tensor(values, dtype=dtype, device=device)
    return column.repeat_interleave(batch_size // len(values))[:, None]


def _accurate(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
