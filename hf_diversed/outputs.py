"""Plain data that moves between the layers: what a model said, what a rule decided, what a call returns.

Letters: B batch, G drafted positions, V vocabulary, D hidden width, T generated tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput


@dataclass(frozen=True, eq=False)
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

    @cached_property
    def _top_and_log_mass(self) -> tuple[torch.Tensor, torch.Tensor]:
        # Kept apart: the difference of a large score and a large log-sum-exp loses the digits a probability needs.
        top = self.scores.amax(dim=-1)
        return top, torch.log(torch.exp(self.scores - top[..., None]).sum(dim=-1))

    @property
    def log_normalizer(self) -> torch.Tensor:
        """float32 `[B, N]`: log-sum-exp of `scores`."""
        top, log_mass = self._top_and_log_mass
        return top + log_mass

    def top_prob(self) -> torch.Tensor:
        """Highest probability at every position: float32 `[B, N]`."""
        return torch.exp(-self._top_and_log_mass[1])

    def prob(self, tokens: torch.Tensor) -> torch.Tensor:
        """Probability of `tokens` (long `[B, M]`, M <= N) at the first M positions: float32 `[B, M]`."""
        count = tokens.shape[1]
        top, log_mass = self._top_and_log_mass
        chosen = self.scores[:, :count].gather(-1, tokens[..., None]).squeeze(-1)
        return torch.exp(chosen - top[:, :count] - log_mass[:, :count])

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """Scores at one position per row (long `[B]`): `[B, V]`."""
        return self.scores[torch.arange(len(positions), device=positions.device), positions]

    def probs(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        """The full law: `[B, V]` at one position per row (long `[B]`), or `[B, N, V]` at all of them."""
        if positions is None:
            return torch.softmax(self.scores, dim=-1)
        return torch.softmax(self.at(positions), dim=-1)


@dataclass(frozen=True, eq=False)
class DraftOutput(BlockOutput):
    """The draft's block: N = G positions, with the tokens it proposed.

    Attributes:
        tokens: long `[B, G]`.
        sampled: whether the tokens were drawn from q (True) or are its argmax (greedy decoding).
        active: bool `[B, G]`, the positions that the rule decides; all unless given. Drafts behind a row's draft
            length, or behind its first drafted EOS, are none, nor are those that another rule decides. Rules that
            judge every position by itself may ignore it.
        lengths: long `[B]`, how many ids each row has so far; None where all have as many as there are columns.
    """

    tokens: torch.Tensor = field(kw_only=True)
    sampled: bool = field(kw_only=True)
    active: torch.Tensor = field(kw_only=True, default=None)  # type: ignore[assignment]
    lengths: torch.Tensor | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        if self.active is None:
            object.__setattr__(self, "active", torch.ones_like(self.tokens, dtype=torch.bool))


@dataclass(frozen=True, eq=False)
class TargetOutput(BlockOutput):
    """The target's block: N = G + 1 positions, the last one after all drafts."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a rule decides about one block.

    Attributes:
        accept_prob: float32 `[B, G]`, probability of keeping each draft given the block and that all drafts before
            it were kept (0 or 1 when greedy).
        replacement: maps long `[B]` (position of the first rejection) to the unnormalised law `[B, V]` that the
            replacing token is drawn from; when greedy, to any `[B, V]` whose argmax is that token.
        weight: float32 `[B, G]`, weight on the target, for rules that mix; else None.
        tv: float32 `[B, G]`, TV(p, q), where the rule computed it; else None.
        inputs: what `weight` was computed from, by name, `[B, G, ...]`, for rules told to keep it; else None.
        state: `[B, G + 1, state_width]`, the rule's memory after a round with 0..G accepted drafts; else None.
        law: gives the law that sampling emits at the drafted positions, float32 `[B, G, V]`, for rules with one
            (`Verifier.has_law`); else None.
        strict_prob: float32 `[B, G]`, the part of `accept_prob` with which a lossless rule of the same kind would have
            kept the draft too; None where that is token-wise, min(1, p / q).
    """

    accept_prob: torch.Tensor
    replacement: Callable[[torch.Tensor], torch.Tensor]
    weight: torch.Tensor | None = None
    tv: torch.Tensor | None = None
    inputs: dict[str, torch.Tensor] | None = None
    state: torch.Tensor | None = None
    law: Callable[[], torch.Tensor] | None = None
    strict_prob: torch.Tensor | None = None


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
        uniforms: float32 `[B, G]`, the coins; None without drafts.
    """

    num_drafted: torch.Tensor
    num_accepted: torch.Tensor
    next_token: torch.Tensor
    num_emitted: torch.Tensor
    ended: torch.Tensor
    faults: torch.Tensor
    uniforms: torch.Tensor | None

    def to_host(self) -> list[list[int]]:
        """`num_drafted`, `num_accepted`, `num_emitted`, `ended`, `faults` as lists of length B, in one transfer."""
        said = (self.num_drafted, self.num_accepted, self.num_emitted, self.ended.long(), self.faults)
        return torch.stack(said).tolist()


@dataclass(frozen=True)
class DecodingContext:
    """What a rule may check before the first forward pass.

    `batch_size` rows come from `num_prompts` prompts (`num_return_sequences` each); temperature is 0 when greedy.
    Without a draft model (prompt lookup) `draft_hidden_size` is None and `draft_name` is empty.
    """

    batch_size: int
    num_prompts: int
    vocab_size: int
    temperature: float
    target_hidden_size: int
    draft_hidden_size: int | None
    target_name: str
    draft_name: str


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")


@dataclass
class SpeculativeStats:
    """Counters of one row, or their sum over rows and calls. Rates are properties, so sums stay exact.

    A round is one target forward on a drafted block; rounds and emitted tokens are counted per row, so a batch of B
    rows adds up to B rounds per target forward; prefill is no round. What EOS, a stop or the length cuts off is
    neither drafted nor accepted. Means run over verified positions: the accepted ones and the rejected one.
    `expected_accepted_sum` is what the rounds' drafts let expect of `num_accepted` before their coins were flipped.
    """

    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_rejected: int = 0
    num_emitted: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    weight_sum: float = 0.0
    weight_count: int = 0
    tv_sum: float = 0.0
    tv_count: int = 0
    bias_sum: float = 0.0
    bias_count: int = 0
    expected_accepted_sum: float = 0.0
    per_row: list["SpeculativeStats"] = field(default_factory=list, repr=False)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted, as DIVERSED and vLLM count it; falls with the draft length. nan without drafts."""
        return _ratio(self.num_accepted, self.num_drafted)

    @property
    def verified_acceptance_rate(self) -> float:
        """Accepted / verified (= coin flips): estimates `1 - w TV(p, q)`, whatever the draft length."""
        return _ratio(self.num_accepted, self.num_accepted + self.num_rejected)

    @property
    def block_efficiency(self) -> float:
        """Emitted tokens per round, the residual or bonus token included: between 1 and the draft length + 1."""
        return _ratio(self.num_emitted, self.num_rounds)

    @property
    def accepted_length(self) -> float:
        """Accepted drafts per round, without the residual or bonus token: between 0 and the draft length."""
        return _ratio(self.num_accepted, self.num_rounds)

    @property
    def expected_accepted_length(self) -> float:
        """What theory says of `accepted_length`: mean over rounds of `sum_n prod_{t <= n} min(1, v_t / q_t)`."""
        return _ratio(self.expected_accepted_sum, self.num_rounds)

    @property
    def acceptance_rate_per_position(self) -> list[float]:
        """Share of rounds in which draft position j was accepted (unconditional, as vLLM reports it)."""
        return [_ratio(count, self.num_rounds) for count in self.accepted_per_position]

    @property
    def mean_weight(self) -> float:
        """Mean weight on the target over verified positions; nan for rules without one."""
        return _ratio(self.weight_sum, self.weight_count)

    @property
    def mean_tv(self) -> float:
        """Mean TV(p, q) over verified positions; nan unless the rule computes it or token records were asked for."""
        return _ratio(self.tv_sum, self.tv_count)

    @property
    def mean_bias(self) -> float:
        """Mean TV(v, p) = (1 - w) TV(p, q) over verified positions, for rules that mix; nan where not known."""
        return _ratio(self.bias_sum, self.bias_count)

    def add(self, other: "SpeculativeStats") -> None:
        """Add another's counters to these, in place; its rows are appended."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name == "accepted_per_position":
                longest = max(len(mine), len(theirs))
                padded = [values + [0] * (longest - len(values)) for values in (mine, theirs)]
                self.accepted_per_position = [a + b for a, b in zip(*padded)]
            elif item.name == "per_row":
                self.per_row = mine + theirs
            else:
                setattr(self, item.name, mine + theirs)

    def to_dict(self) -> dict:
        """Counters and rates for strict JSON (None where a rate is nan), under AIPerf's names where it has one."""
        values = {
            "num_spec_steps": self.num_rounds,
            "num_draft_tokens": self.num_drafted,
            "num_accepted_draft_tokens": self.num_accepted,
            "draft_acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.block_efficiency,
            "num_accepted_tokens_per_pos": list(self.accepted_per_position),
            "verified_acceptance_rate": self.verified_acceptance_rate,
            "num_emitted": self.num_emitted,
            "target_forwards": self.target_forwards,
            "draft_forwards": self.draft_forwards,
            "mean_weight": self.mean_weight,
            "mean_tv": self.mean_tv,
            "mean_bias": self.mean_bias,
        }
        return {name: None if value != value else value for name, value in values.items()}


SOURCES = ("draft", "residual", "bonus")


@dataclass(frozen=True, eq=False)
class TokenRecords:
    """Where every generated token came from: tensors `[B, T]` on the CPU, one column per generated token.

    Attributes:
        tokens: long. `source`: int8 index into `SOURCES`, -1 after a row's end.
        relaxed: bool, a draft that was accepted though the target alone would have rejected it (`u > p / q`).
        weight, p, q, tv: float32; the weight on the target, both models' probability of the token and TV(p, q).
            nan where there is none: weight and tv exist at drafted positions, q at no bonus token.
        inputs: what the rule computed its weights from, by name, `[B, T, ...]` in their own dtype, zeros where there
            is no weight; None unless the rule keeps it.
    """

    tokens: torch.Tensor
    source: torch.Tensor
    relaxed: torch.Tensor
    weight: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor
    tv: torch.Tensor
    inputs: dict[str, torch.Tensor] | None = None


@dataclass
class GenerateDiversedOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns under a verifier with `return_dict_in_generate=True`.

    `sequences`, `scores` and `logits` are as upstream's: the target's processed scores and raw logits for every
    emitted token, zeros after a row's end. `past_key_values` is None: rows stand at different lengths, no stock cache
    could be continued from it.

    Attributes:
        stats: acceptance counters for the whole batch, with `per_row`.
        token_records: per-token provenance; None unless `output_token_records=True`.
    """

    stats: SpeculativeStats | None = None
    token_records: TokenRecords | None = None
