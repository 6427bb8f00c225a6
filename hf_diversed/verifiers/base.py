"""The verifier contract: a callable on ids and scores, like a LogitsProcessor, but over a drafted block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Trace, Verdict
from hf_diversed.sampling import residual


class Verifier:
    """Decides which draft tokens to accept, and the distribution of the token that replaces the first rejected one.

    A verifier sees tensors and returns tensors: it never calls a model, touches a cache or draws a random number.
    Subclasses implement `__call__`, or derive from `DistributionVerifier` and only choose the
    distribution to verify against.

    Attributes:
        needs_hidden_states: ask for `hidden` on both outputs.
        needs_raw_logits: ask for `raw_logits` on both outputs.
        needs_draft_confidence: the verifier reads the draft model's confidence, which looked-up tokens lack.
        greedy_only: refuse sampling before the first forward pass.
        has_emitted_probs: sampling emits one distribution at the draft positions, and every `Verdict` returns it.
        needs_input_ids: the verifier reads the ids so far. Unless this is False it runs outside of compiled rounds,
            which do not have them at hand.
        row_settings: attributes whose values reach the verifier as dials only, so that what is compiled for one value
            serves all.
        state_width: number of values that the verifier keeps per row from round to round.
        num_assistant_tokens: draft length the verifier was made for, used if the caller sets none.
        needs_check: whether its first verdict of a call is checked; set for every class outside this package.
    """

    needs_hidden_states = False
    needs_raw_logits = False
    needs_draft_confidence = False
    needs_input_ids = True
    row_settings: tuple[str, ...] = ()
    greedy_only = False
    has_emitted_probs = False
    state_width = 0
    num_assistant_tokens: int | None = None
    needs_check = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.needs_check = not cls.__module__.startswith("hf_diversed.")
        if "__call__" in vars(cls) and "needs_input_ids" not in vars(cls):
            cls.needs_input_ids = True  # whatever its base did, this one is handed the ids

    def check(self, context: DecodingContext) -> None:
        """Refuse, before any forward pass, what this verifier cannot serve. Raises ValueError."""

    def for_call(self, context: DecodingContext) -> "Verifier":
        """Return the verifier that decodes a call: this one, unless it depends on the call's settings.

        Raises ValueError, before any forward pass, where there is none for them.
        """
        return self

    def strictness_per_row(self) -> Sequence[float]:
        """The strictness, one value or one per row, for the statistics; empty for verifiers without one."""
        return ()

    def remarks(self, context: DecodingContext) -> list[str]:
        """Warnings about this use of the verifier, each logged once; none by default."""
        return []

    def components(self) -> list[object]:
        """The verifier and all objects that receive a block's tensors from it: other verifiers, a head."""
        return [self]

    def dials(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Settings that rows may have of their own, by name: `[B, 1]` each; none by default.

        The loop keeps them with the rows and passes them as `dials=`; a verifier without any is called without.
        """
        return {}

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
        """Judge one block.

        Args:
            input_ids: long `[B, L]`, the ids so far; rows with fewer, `draft.lengths`, are filled up.
            draft: draft tokens and q at G positions. target: p at G + 1 positions.
            state: what this verifier returned at its last call for the accepted draft tokens, `[B, state_width]`; None
                at the first one. Rounds in which no row has draft tokens call no verifier, but lengthen rows.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement __call__ (or derive from DistributionVerifier)"
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{type(self).__name__}({shown})"

    def settings(self) -> dict[str, object]:
        """Settings by name, for `repr`."""
        return {name: value for name, value in vars(self).items() if not name.startswith(("_", "needs_"))}


class DistributionVerifier(Verifier):
    """Verifiers that choose a distribution v and verify exactly against it: subclasses implement `emitted_probs`.

    Sampling: accept x with probability min(1, v(x) / q(x)), replace by norm(max(v - q, 0)). Greedy: accept x iff it is
    v's argmax, else replace it by that argmax. Either way the emitted distribution is v at draft positions (arXiv
    2211.17192).
    """

    has_emitted_probs = True
    needs_input_ids = False

    def emitted_probs(self, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
        """Return the emitted distribution v: float32 `[B, G, V]`, summing to one at every position."""
        raise NotImplementedError(f"{type(self).__name__} must implement emitted_probs")

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
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
            accepted = keep_best(best, draft.tokens, mass)
            return Verdict(accepted, lambda positions: v[rows, positions], trace=Trace(emitted_probs=lambda: v))
        chosen = v.gather(-1, draft.tokens[..., None]).squeeze(-1)
        accept_prob = torch.clamp(chosen / draft.prob(draft.tokens).clamp_min(torch.finfo(v.dtype).tiny), max=1.0)
        return Verdict(
            accept_prob,
            lambda positions: residual(v[rows, positions], draft.probs(positions), fallback=target.probs(positions)),
            trace=Trace(emitted_probs=lambda: v),
        )


@dataclass(eq=False)
class Memory:
    """Dials and state of a verifier, per row.

    Attributes:
        dials: see `Verifier.dials`. state: `[B, state_width]`; None before the first round, and for verifiers without
            state.
        is_checked: whether a verdict of the verifier has been checked; see `Verifier.needs_check`.
    """

    dials: dict[str, torch.Tensor] = field(default_factory=dict)
    state: torch.Tensor | None = None
    is_checked: bool = False

    def verify(self, verifier: Verifier, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput) -> Verdict:
        """Call a verifier with its state and, if it has any, its dials."""
        dials = {"dials": self.dials} if self.dials else {}
        return verifier(input_ids, draft, target, self.state, **dials)

    def learn(self, verdict: Verdict | None, num_accepted: torch.Tensor) -> None:
        """Keep the state after `num_accepted` accepted draft tokens, long `[B]`; does nothing without a verdict."""
        if verdict is not None:
            self.is_checked = True
            rows = torch.arange(len(num_accepted), device=num_accepted.device)
            self.state = None if verdict.state is None else verdict.state[rows, num_accepted]

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) of the batch only."""
        self.dials = {name: values[rows] for name, values in self.dials.items()}
        self.state = None if self.state is None else self.state[rows]


class CompositeVerifier(Verifier):
    """Base of verifiers made of other verifiers: needs what any of them needs."""

    def __init__(self, *parts: Verifier):
        for part in parts:
            if not isinstance(part, Verifier):
                raise TypeError(f"{type(self).__name__} takes verifiers, got {type(part).__name__}; pass an instance.")
        self._parts = parts
        needs = ("needs_hidden_states", "needs_raw_logits", "needs_draft_confidence", "needs_input_ids", "needs_check")
        for name in (*needs, "greedy_only"):
            setattr(self, name, any(getattr(part, name) for part in parts))
        self.num_assistant_tokens = next(
            (part.num_assistant_tokens for part in parts if part.num_assistant_tokens is not None), None
        )

    def check(self, context: DecodingContext) -> None:
        for part in self._parts:
            part.check(context)

    def components(self) -> list[object]:
        return [self, *(thing for part in self._parts for thing in part.components())]

    def remarks(self, context: DecodingContext) -> list[str]:
        return [remark for part in self._parts for remark in part.remarks(context)]

    def dials(self, batch_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        named = enumerate(part.dials(batch_size, device) for part in self._parts)
        return {f"{index}.{name}": values for index, dials in named for name, values in dials.items()}

    def ask_parts(
        self,
        input_ids: torch.Tensor,
        drafts: Sequence[DraftOutput],
        target: TargetOutput,
        states: Sequence[torch.Tensor | None],
        dials: dict[str, torch.Tensor] | None,
    ) -> list[Verdict]:
        """Every part's verdict: on a draft of its own, with its own state and its own dials."""
        verdicts = []
        for index, (part, draft, state) in enumerate(zip(self._parts, drafts, states)):
            start = f"{index}."
            own = {name[len(start) :]: x for name, x in (dials or {}).items() if name.startswith(start)}
            verdicts.append(Memory(own, state).verify(part, input_ids, draft, target))
        return verdicts


def keep_best(best: torch.Tensor, tokens: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """Greedy acceptance, float32 `[B, G]`: 1 where a token is the best one, else 0; NaN where the distribution is.

    Args:
        best, tokens: long `[B, G]`. mass: float32 `[B, G]`, probability of the best token.
    """
    return torch.where(mass.isfinite(), (best == tokens).float(), float("nan"))


def target_residual(draft: DraftOutput, target: TargetOutput) -> Callable[[torch.Tensor], torch.Tensor]:
    """The residual distribution max(p - q, 0) of lossless, mixing and lenient verifiers; p where it is zero."""

    def replacement(positions: torch.Tensor) -> torch.Tensor:
        p = target.probs(positions)
        return residual(p, draft.probs(positions), fallback=p)

    return replacement


def decoding_laws(draft: DraftOutput, target: TargetOutput) -> tuple[torch.Tensor, torch.Tensor]:
    """q and p at the drafted positions, float32 `[B, G, V]` each; one-hot when greedy."""
    if draft.sampled:
        return draft.probs(), target.probs()[:, :-1]
    return one_hot_best(draft.scores), one_hot_best(target.scores[:, :-1])


def one_hot_best(scores: torch.Tensor) -> torch.Tensor:
    """All mass on the argmax: float32, the shape of `scores`."""
    best = scores.argmax(-1, keepdim=True)
    return torch.zeros_like(scores, dtype=torch.float32).scatter_(-1, best, 1.0)


def check_range(name: str, value: float, low: float, high: float, advice: str = "") -> float:
    """Return `value` as a float, or raise ValueError naming parameter, range, what was given and what to do."""
    if isinstance(value, str) or not low <= value <= high:  # also refuses nan
        raise ValueError(f"`{name}` must lie in [{low:g}, {high:g}], got {value!r}. {advice}".rstrip())
    return float(value)


def check_count(name: str, value: float, advice: str = "") -> int:
    """Return `value` as an int of at least 1, or raise ValueError. Whole floats count: command lines send them."""
    if isinstance(value, str) or not value >= 1 or not float(value).is_integer():
        raise ValueError(f"`{name}` must be an integer >= 1, got {value!r}. {advice}".rstrip())
    return int(value)
