"""Plain data of one round: what both models said, what a rule decided, what came of it.

Letters: B batch, G drafted positions, V vocabulary, D hidden width. Needs torch only.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False)
class BlockOutput:
    """One model's say over N consecutive positions of every row.

    Attributes:
        scores: float32 `[B, N, V]`, logits after all processors.
        hidden: `[B, N, D]`, what the output embedding saw, in the model's dtype and on its device; None unless asked
            for.
        raw_logits: float32 `[B, N, V]`, logits before any processor; None unless asked for.
    """

    scores: torch.Tensor
    hidden: torch.Tensor | None = None
    raw_logits: torch.Tensor | None = None
    _top: torch.Tensor | None = field(default=None, init=False, repr=False)
    _log_mass: torch.Tensor | None = field(default=None, init=False, repr=False)

    @property
    def top(self) -> torch.Tensor:
        """float32 `[B, N]`: the best score."""
        if self._top is None:
            self._top = self.scores.amax(dim=-1)
        return self._top

    @property
    def log_mass(self) -> torch.Tensor:
        """float32 `[B, N]`: log-sum-exp of `scores - top`.

        Kept apart from `top`: the difference of a large score and a large log-sum-exp loses the digits that a
        probability needs.
        """
        if self._log_mass is None:
            self._log_mass = torch.log(torch.exp(self.scores - self.top[..., None]).sum(dim=-1))
        return self._log_mass

    @property
    def log_normalizer(self) -> torch.Tensor:
        """float32 `[B, N]`: log-sum-exp of `scores`."""
        return self.top + self.log_mass

    def top_prob(self) -> torch.Tensor:
        """Highest probability at every position: float32 `[B, N]`."""
        return torch.exp(-self.log_mass)

    def prob(self, tokens: torch.Tensor) -> torch.Tensor:
        """Probability of `tokens` (long `[B, M]`, M <= N) at the first M positions: float32 `[B, M]`."""
        count = tokens.shape[1]
        chosen = self.scores[:, :count].gather(-1, tokens[..., None]).squeeze(-1)
        return torch.exp(chosen - self.top[:, :count] - self.log_mass[:, :count])

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Scores at one position per row (long `[B]`): `[B, V]`."""
        return self.scores[torch.arange(len(positions), device=positions.device), positions]

    def probs(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The full law: `[B, V]` at one position per row (long `[B]`), or `[B, N, V]` at all of them."""
        if positions is None:
            return torch.softmax(self.scores, dim=-1)
        return torch.softmax(self.at(positions), dim=-1)


@dataclass(eq=False)
class DraftOutput(BlockOutput):
    """The draft's block: N = G positions, with the tokens it proposed.

    Attributes:
        tokens: long `[B, G]`.
        sampled: whether the tokens were drawn from q (True) or are its argmax (greedy decoding).
        active: bool `[B, G]`, the positions that the rule decides; all unless given. Drafts behind a row's draft
            length, or behind its first drafted EOS, are none, nor are those that another rule decides. Rules that
            judge every position by itself may ignore it.
        lengths: long `[B]`, how many ids each row has so far; None where all have as many as there are columns.
        num_drafted: long `[B]`, each row's drafts that count, whichever rule decides them; as `active` says unless
            given.
    """

    tokens: torch.Tensor = field(kw_only=True)
    sampled: bool = field(kw_only=True)
    active: torch.Tensor = field(kw_only=True, default=None)  # type: ignore[assignment]
    lengths: torch.Tensor | None = field(kw_only=True, default=None)
    num_drafted: torch.Tensor = field(kw_only=True, default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.active is None:
            self.active = torch.ones_like(self.tokens, dtype=torch.bool)
        if self.num_drafted is None:
            self.num_drafted = self.active.sum(dim=-1)


@dataclass(eq=False)
class TargetOutput(BlockOutput):
    """The target's block: N = G + 1 positions, the last one after all drafts."""


@dataclass(frozen=True, eq=False)
class Trace:
    """What a rule tells about a block beside what it decides; everything may be None.

    Attributes:
        weight: float32 `[B, G]`, weight on the target at the drafted token, for rules that mix.
        tv: float32 `[B, G]`, TV(p, q), where the rule computed it.
        bias: float32 `[B, G]`, TV(v, p), where weights differ from token to token; unless the rule needed it, what the
            drafted token alone says, (1 - w) max(1 - p/q, 0), which is TV(v, p) on average. None where one weight
            holds for all tokens, and TV(v, p) is (1 - w) TV(p, q).
        inputs: what a learned rule saw, by name, `[B, G, ...]`, if it was told to keep it.
        emitted_probs: returns the distribution that sampling emits at the draft positions, float32 `[B, G, V]`; None
            for verifiers without one (`Verifier.has_emitted_probs`); NaN where another verifier decides.
        strict_prob: float32 `[B, G]`, the part of `accept_prob` with which a lossless rule of the same kind would have
            kept the draft too; None where that is token-wise, min(1, p / q).
    """

    weight: torch.Tensor | None = None
    tv: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    inputs: dict[str, torch.Tensor] | None = None
    emitted_probs: Callable[[], torch.Tensor] | None = None
    strict_prob: torch.Tensor | None = None


@dataclass(eq=False)
class Verdict:
    """What a rule decides about one block.

    Attributes:
        accept_prob: float32 `[B, G]`, probability of keeping each draft given the block and that all drafts before
            it were kept (0 or 1 when greedy).
        replacement: maps long `[B]` (position of the first rejection) to the unnormalised law `[B, V]` that the
            replacing token is drawn from; when greedy, to any `[B, V]` whose argmax is that token.
        state: `[B, G + 1, state_width]`, the rule's memory after a round with 0..G accepted drafts; else None.
        trace: what is told about it; nothing hangs on that.
    """

    accept_prob: torch.Tensor
    replacement: Callable[[torch.Tensor], torch.Tensor]
    state: torch.Tensor | None = None
    trace: Trace = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.trace is None:  # no default instance and no factory: `torch.compile` follows neither
            self.trace = Trace()


@dataclass(frozen=True, eq=False)
class VerifyOutput:
    """Outcome of one round, one entry per row.

    Attributes:
        num_drafted: long `[B]`, drafts that count: up to the row's gamma or its first drafted EOS.
        num_accepted: long `[B]`, 0 to `num_drafted`.
        next_token: long `[B]`, the residual token at the first rejection, or the bonus token behind all drafts.
        num_emitted: long `[B]`: `num_accepted + 1`, or `num_accepted` where the last accepted draft is EOS.
        ended: bool `[B]`, an EOS was emitted.
        faults: long `[B]`, what is wrong with the numbers that these tokens hang on; 0 for nothing.
    """

    num_drafted: torch.Tensor
    num_accepted: torch.Tensor
    next_token: torch.Tensor
    num_emitted: torch.Tensor
    ended: torch.Tensor
    faults: torch.Tensor

    def to_host(self) -> list[list[int]]:
        """`num_drafted`, `num_accepted`, `num_emitted`, `ended`, `faults` as lists of length B, in one transfer."""
        said = (self.num_drafted, self.num_accepted, self.num_emitted, self.ended.long(), self.faults)
        return torch.stack(said).tolist()


@dataclass(frozen=True)
class DecodingContext:
    """What a rule may check before the first forward pass.

    `batch_size` rows come from `num_prompts` prompts (`num_return_sequences` each); temperature is 0 when greedy, and
    None where rows have their own. `num_assistant_tokens` drafts per round, None where that adapts; `top_k` and
    `top_p` are 0 and 1 where they cut nothing off. `processors` is the complete list, those of sampling included.
    `target` and `draft` are the models, or None where the caller has none (vLLM).
    Without a draft model (prompt lookup) `draft_hidden_size` is None and `draft_name` is empty.
    """

    batch_size: int
    num_prompts: int
    vocab_size: int
    temperature: float | None
    target_hidden_size: int
    draft_hidden_size: int | None
    target_name: str
    draft_name: str
    num_assistant_tokens: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int | None = None
    processors: tuple[Any, ...] = ()
    target: torch.nn.Module | None = None
    draft: torch.nn.Module | None = None
