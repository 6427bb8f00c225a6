"""Base classes of verifiers: callables on ids and scores, like a LogitsProcessor, for a block of draft tokens."""

import operator
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import residual


AS_TRAINED = 0.5  # strictness of a head


class Setting(NamedTuple):
    """The allowed range of a setting, and advice for error messages."""

    low: float
    high: float
    advice: str


SETTINGS = {
    "strictness": Setting(0.0, 1.0, "0 accepts every draft token, 0.5 is the head as trained, 1 is lossless."),
    "max_bias": Setting(0.0, 1.0, "0 is lossless, 1 is no bound."),
    "max_ratio": Setting(
        1.0, float("inf"), "1 is lossless, 2 allows at most twice the target's probability, inf is no bound."
    ),
}
LIMITS = tuple(name for name in SETTINGS if name != "strictness")


class Verifier:
    """Decides which draft tokens to accept, and the distribution of the token that replaces the first rejected one.

    A verifier takes and returns tensors. It does not call models, change caches or draw random numbers.
    Subclasses implement `__call__`, or derive from `DistributionVerifier` and implement `emitted_probs`.

    Attributes:
        needs_hidden_states: whether both outputs must contain `hidden`.
        needs_raw_logits: whether both outputs must contain `raw_logits`.
        needs_draft_confidence: whether the verifier uses the draft model's probabilities, which prompt lookup lacks.
        has_emitted_probs: whether every `Verdict` on sampled draft tokens contains the emitted distribution at each
            draft position (`Trace.emitted_probs`). `BlockVerifier` accepts only such verifiers.
        needs_input_ids: whether the verifier uses `input_ids`. If so, verification is not compiled.
        row_settings: attributes that the verifier reads from `row_values` only. Changing them does not trigger
            recompilation.
        num_assistant_tokens: default number of draft tokens per round, used if the caller sets none.
        allows_early_stop: whether the length of a draft block may depend on its draft tokens. False if a shorter block
            is verified more permissively; the draft model's confidence then ends no block.
        needs_check: whether the first verdict of each call is validated; True for classes outside this package.
    """

    needs_hidden_states = False
    needs_raw_logits = False
    needs_draft_confidence = False
    needs_input_ids = True
    row_settings: tuple[str, ...] = ()
    has_emitted_probs = False
    num_assistant_tokens: int | None = None
    allows_early_stop = True
    needs_check = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.needs_check = not cls.__module__.startswith("hf_diversed.")
        if "__call__" in vars(cls) and "needs_input_ids" not in vars(cls):
            cls.needs_input_ids = True  # the override may use them even if the base class does not

    def check(self, context: DecodingContext) -> None:
        """Raise ValueError, before any forward pass, if this verifier does not support the call."""

    def strictness_per_row(self) -> Sequence[float]:
        """Return the strictness for the statistics: one value, or one per prompt or row; empty without strictness."""
        return ()

    def remarks(self, context: DecodingContext) -> list[str]:
        """Return warnings about this use of the verifier; each is logged once. Empty by default."""
        return []

    def components(self) -> list[object]:
        """Return the verifier and all objects that it calls on a block: other verifiers, a head."""
        return [self]

    def row_values(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Return the per-row settings by name, `[B, 1]` each; empty by default.

        The decoding loop drops finished rows from them and passes them as `row_values=`, unless the dict is empty.
        """
        return {}

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        """Verify one block of draft tokens.

        Args:
            input_ids: long `[B, L]`, prompt and generated ids. Row i has `draft.lengths[i]` ids; the rest is padding.
            draft: draft tokens and q at G positions.
            target: p at G + 1 positions.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement __call__ (or derive from DistributionVerifier)"
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{type(self).__name__}({shown})"

    def settings(self) -> dict[str, object]:
        """Return the settings by name, for `repr`."""
        attributes = {name: value for name, value in vars(self).items() if not name.startswith(("_", "needs_"))}
        # The repr of a method that was replaced on this verifier contains the verifier's.
        return {name: getattr(value, "__func__", value) for name, value in attributes.items()}


class DistributionVerifier(Verifier):
    """Base class of verifiers that verify exactly against a distribution v; subclasses implement `emitted_probs`.

    Sampling: accept x with probability min(1, v(x) / q(x)), else draw from norm(max(v - q, 0)), so that the emitted
    distribution at draft positions is v (arXiv 2211.17192). Greedy: accept x iff it is argmax v, else emit argmax v.
    """

    has_emitted_probs = True
    needs_input_ids = False

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        """Return the emitted distribution v: float32 `[B, G, V]`; sums to 1 at every position."""
        raise NotImplementedError(f"{type(self).__name__} must implement emitted_probs")

    def __call__(self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        v = self.emitted_probs(draft, target)
        expected = (*draft.tokens.shape, target.scores.shape[-1])
        if v.shape != expected:
            raise ValueError(
                f"{type(self).__name__}: the emitted distribution must have shape {list(expected)}, "
                f"got {list(v.shape)}."
            )
        rows = torch.arange(v.shape[0], device=v.device)
        if not draft.sampled:
            mass, best = v.max(dim=-1)
            accepted = accept_best(best, draft.tokens, mass)
            return Verdict(accepted, lambda positions: v[rows, positions], trace=Trace(emitted_probs=lambda: v))
        chosen = v.gather(-1, draft.tokens[..., None]).squeeze(-1)
        accept_prob = torch.clamp(chosen / draft.prob(draft.tokens).clamp_min(torch.finfo(v.dtype).tiny), max=1.0)
        return Verdict(
            accept_prob,
            lambda positions: residual(v[rows, positions], draft.probs(positions), fallback=target.probs(positions)),
            trace=Trace(emitted_probs=lambda: v),
        )


def call_verifier(
    verifier: Verifier,
    input_ids: torch.Tensor,
    draft: DraftOutput,
    target: TargetOutput,
    row_values: dict[str, torch.Tensor],
) -> Verdict:
    """Call a verifier with its per-row settings, if it has any."""
    values = {"row_values": row_values} if row_values else {}
    return verifier(input_ids, draft, target, **values)


class CompositeVerifier(Verifier):
    """Base class of verifiers that combine other verifiers. Requirements of the class and of its parts are combined.

    Raises:
        TypeError: if a part is not a verifier.
    """

    def __init__(self, *parts: Verifier):
        for part in parts:
            if not isinstance(part, Verifier):
                raise TypeError(f"{type(self).__name__} takes verifiers, got {type(part).__name__}; pass an instance.")
        self._parts = parts
        declared: tuple[type[Verifier] | Verifier, ...] = (type(self), *parts)
        for name in ("needs_raw_logits", "needs_draft_confidence", "needs_input_ids", "needs_check"):
            setattr(self, name, any(getattr(item, name) for item in declared))
        self.allows_early_stop = all(item.allows_early_stop for item in declared)
        self.needs_hidden_states = any(item.needs_hidden_states for item in declared)
        counts = (item.num_assistant_tokens for item in declared)
        self.num_assistant_tokens = next((count for count in counts if count is not None), None)

    def check(self, context: DecodingContext) -> None:
        for part in self._parts:
            part.check(context)

    def components(self) -> list[object]:
        return [self, *(component for part in self._parts for component in part.components())]

    def remarks(self, context: DecodingContext) -> list[str]:
        return [remark for part in self._parts for remark in part.remarks(context)]

    def row_values(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        return {
            f"{index}.{name}": values
            for index, part in enumerate(self._parts)
            for name, values in part.row_values(batch_size, device).items()
        }

    def verify_parts(
        self,
        input_ids: torch.Tensor,
        drafts: Sequence[DraftOutput],
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None,
    ) -> list[Verdict]:
        """Call each part with its draft output and per-row settings, and return the verdicts."""
        verdicts = []
        for index, (part, draft) in enumerate(zip(self._parts, drafts)):
            prefix = f"{index}."
            values = {name[len(prefix) :]: x for name, x in (row_values or {}).items() if name.startswith(prefix)}
            verdicts.append(call_verifier(part, input_ids, draft, target, values))
        return verdicts


def accept_best(best: torch.Tensor, tokens: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Greedy acceptance, float32 `[B, G]`: 1 where tokens equal `best`, else 0; NaN where `mass` is NaN or infinite.

    Args:
        best, tokens: long `[B, G]`.
        mass: float32 `[B, G]`, the probability of the best token.
    """
    return torch.where(mass.isfinite(), (best == tokens).float(), float("nan"))


def target_residual(draft: DraftOutput, target: TargetOutput) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that computes max(p - q, 0), not normalised, at given positions, or p where p = q."""

    def replacement(positions: torch.Tensor) -> torch.Tensor:
        p = target.probs(positions)
        return residual(p, draft.probs(positions), fallback=p)

    return replacement


def decoding_probs(draft: DraftOutput, target: TargetOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """Return q and p at the draft positions, float32 `[B, G, V]` each; one-hot in greedy decoding."""
    if draft.sampled:
        return draft.probs(), target.probs()[:, :-1]
    return one_hot_best(draft.scores), one_hot_best(target.scores[:, :-1])


def one_hot_best(scores: torch.Tensor) -> torch.Tensor:
    """Return the one-hot distribution at the argmax: float32, shape of `scores`."""
    best = scores.argmax(-1, keepdim=True)
    return torch.zeros_like(scores, dtype=torch.float32).scatter_(-1, best, 1.0)


def read_numbers(given: object) -> list[float] | None:
    """Return the numbers in a number, tensor, array or (nested) list; None if it contains anything else.

    Booleans are not numbers.
    """
    values = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(values, (list, tuple)):
        parts = [read_numbers(value) for value in values]
        return None if None in parts else [number for part in parts if part is not None for number in part]
    return [values] if isinstance(values, Real) and not isinstance(values, bool) else None  # type: ignore[list-item]


def check_range(
    name: str, value: float, low: float, high: float, advice: str = "", excluded: float | None = None
) -> float:
    """Return `value` as a float. Raises ValueError, with `advice` at the end, if it is not in [low, high].

    `excluded` is `low` or `high` if that bound is not allowed.
    """
    numbers = read_numbers(value)
    if numbers is None or len(numbers) != 1 or not low <= numbers[0] <= high or numbers[0] == excluded:  # also NaN
        interval = f"{'(' if excluded == low else '['}{low:g}, {high:g}{')' if excluded == high else ']'}"
        raise ValueError(f"`{name}` must lie in {interval}, got {value!r:.200}. {advice}".rstrip())
    return float(numbers[0])


def check_count(name: str, value: float, advice: str = "") -> int:
    """Return `value` as an int >= 1, else raise ValueError. Accepts whole floats, as parsed from the command line."""
    count = read_integer(int(value) if isinstance(value, float) and value.is_integer() else value)
    if count is None or count < 1:
        raise ValueError(f"`{name}` must be an integer >= 1, got {value!r:.200}. {advice}".rstrip())
    return count


def read_integer(value: Any) -> int | None:
    """Return an integer of any type, also of numpy, as an int; None for all other values and for booleans."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
