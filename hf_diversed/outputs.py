"""Plain data that a call returns: statistics, token records, and `generate`'s own output with both.

Letters: B batch, T generated tokens.
"""

from dataclasses import dataclass, field, fields

import torch
from transformers import PreTrainedTokenizerBase
from transformers.generation.utils import GenerateDecoderOnlyOutput


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")


@dataclass
class CompileStats:
    """Compilation in one call; all 0 in eager decoding.

    Attributes:
        num_used: number of compiled functions that the call ran.
        num_compiled: number of functions that the call compiled.
        seconds: duration of the compilation, including first runs.
    """

    num_used: int = 0
    num_compiled: int = 0
    seconds: float = 0.0

    def add(self, other: "CompileStats") -> None:
        """Add the counters of another call, in place."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))


@dataclass
class SpeculativeStats:
    """Counters of one row, or their sum over rows and calls. Rates are properties, so sums stay exact.

    A round is one target forward on a block of draft tokens; rounds and emitted tokens are counted per row, so a batch
    of B rows counts B rounds per target forward. Prefill is not a round. Tokens cut off by EOS, a stop string or the
    length limit count as neither drafted nor accepted. Means are over verified positions: the accepted ones and the
    rejected one.

    Attributes:
        target_forwards, draft_forwards: forward passes over the batch, including prefill; the same for all its rows.
        per_row: the counters of each row.
        engine: "eager", "static" (fixed shapes) or "compiled".
        engine_reason: why a call with `cache_implementation="static"` could not run or be compiled as a whole, else
            empty.
        compile: compilations.
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
    strictness_sum: float = 0.0
    strictness_count: int = 0
    per_row: list["SpeculativeStats"] = field(default_factory=list, repr=False)
    engine: str = ""
    engine_reason: str = ""
    compile: CompileStats = field(default_factory=CompileStats)

    def __str__(self) -> str:
        """Return tokens, rounds and accepted draft tokens in one line; `repr` returns all counters."""
        accepted = f"{self.num_accepted} of {self.num_drafted}"
        if self.num_drafted:
            accepted += f" ({self.acceptance_rate:.1%})"
        return f"tokens: {self.num_emitted}, rounds: {self.num_rounds}, accepted draft tokens: {accepted}"

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted, as DIVERSED and vLLM count it; falls with gamma. NaN without draft tokens."""
        return _ratio(self.num_accepted, self.num_drafted)

    @property
    def verified_acceptance_rate(self) -> float:
        """Accepted / (accepted + rejected): of a token-wise mixture, an estimate of `1 - w TV(p, q)` at any gamma."""
        return _ratio(self.num_accepted, self.num_accepted + self.num_rejected)

    @property
    def block_efficiency(self) -> float:
        """Emitted tokens per round, including the residual or bonus token: between 1 and gamma + 1."""
        return _ratio(self.num_emitted, self.num_rounds)

    @property
    def acceptance_rate_per_position(self) -> list[float]:
        """Share of rounds in which draft position j was accepted (unconditional, as vLLM reports it)."""
        return [_ratio(count, self.num_rounds) for count in self.accepted_per_position]

    @property
    def strictness(self) -> float:
        """Mean strictness over rows, NaN for verifiers without strictness and for phases."""
        return _ratio(self.strictness_sum, self.strictness_count)

    @property
    def mean_weight(self) -> float:
        """Mean weight on the target over verified positions; NaN for verifiers without weights."""
        return _ratio(self.weight_sum, self.weight_count)

    @property
    def mean_tv(self) -> float:
        """Mean TV(p, q) over verified positions; NaN unless the verifier computes it or token records are returned."""
        return _ratio(self.tv_sum, self.tv_count)

    @property
    def mean_bias(self) -> float:
        """Mean TV(v, p) over verified positions, for mixtures; NaN if unknown.

        It is (1 - w) TV(p, q). With a weight per token it is exact with token records, in greedy decoding and
        in block verification; otherwise it is an unbiased estimate from the draft tokens.
        """
        return _ratio(self.bias_sum, self.bias_count)

    def add(self, other: "SpeculativeStats") -> None:
        """Add the counters of other rows or calls, in place, and append their rows."""
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name == "accepted_per_position":
                longest = max(len(mine), len(theirs))
                padded = [values + [0] * (longest - len(values)) for values in (mine, theirs)]
                self.accepted_per_position = [a + b for a, b in zip(*padded)]
            elif item.name == "per_row":
                self.per_row.extend(theirs)
            elif item.name in ("engine", "engine_reason"):
                between = ", " if item.name == "engine" else "; "
                names = dict.fromkeys(name for text in (mine, theirs) for name in text.split(between) if name)
                setattr(self, item.name, between.join(names))
            elif item.name == "compile":
                self.compile.add(theirs)
            else:
                setattr(self, item.name, mine + theirs)

    def to_dict(self) -> dict:
        """Return counters and rates for strict JSON (None for NaN), under AIPerf's names if they exist."""
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
            "strictness": self.strictness,
            "mean_weight": self.mean_weight,
            "mean_tv": self.mean_tv,
            "mean_bias": self.mean_bias,
        }
        return {name: None if value != value else value for name, value in values.items()}


SOURCES = ("draft", "residual", "bonus")


@dataclass(frozen=True, eq=False)
class TokenRecords:
    """Origin of every generated token: tensors `[B, T]` on the CPU, one column per generated token.

    Attributes:
        tokens: long. `source`: int8 index into `SOURCES`, -1 after a row's end.
        relaxed: bool, an accepted draft token that lossless verification would have rejected (`u >= strict_prob`).
        weight, p, q, tv, bias: float32; the weight on the target at the draft token, both models' probability of
            the emitted token, TV(p, q), and TV(v, p) for mixtures. p and q are the processed distributions, after
            temperature and all logits processors. NaN where undefined: weight, tv and bias exist at drafted positions
            only, q not at bonus tokens.
        raw_p: float32, as p, but before temperature and all logits processors: from the softmax of the raw logits.
        log_prob: float32, log-probability of the emitted token under the distribution that sampled it: the emitted
            distribution v at drafted positions, p at bonus tokens, 0 in greedy decoding. NaN at drafted positions
            where the verifier does not compute v (`Trace.emitted_probs`).
        strict_prob: float32, probability that lossless verification accepts the draft token: min(1, p / q), or
            `Trace.strict_prob`; 0 or 1 in greedy decoding, NaN at bonus tokens.
        inputs: inputs of the head, by name, `[B, T, ...]` in their own dtype, undefined where there is no weight; None
            unless the verifier keeps them.
    """

    tokens: torch.Tensor
    source: torch.Tensor
    relaxed: torch.Tensor
    weight: torch.Tensor
    p: torch.Tensor
    raw_p: torch.Tensor
    q: torch.Tensor
    tv: torch.Tensor
    bias: torch.Tensor
    log_prob: torch.Tensor
    strict_prob: torch.Tensor
    inputs: dict[str, torch.Tensor] | None = None

    @property
    def log_prob_target(self) -> torch.Tensor:
        """Log-probability of the emitted token under p, the processed distribution: float32 `[B, T]`.

        Its support is that of the call: tokens that top-k, top-p or another processor removes have none. NaN after a
        row's end.
        """
        return self.p.log()

    @property
    def log_prob_raw(self) -> torch.Tensor:
        """Log-probability of the emitted token under the target's raw logits (temperature 1): float32 `[B, T]`.

        Its support is the whole vocabulary. Equal to `log_prob_target` at temperature 1 without processors that change
        scores. NaN after a row's end.
        """
        return self.raw_p.log()

    def pieces(self, tokenizer: PreTrainedTokenizerBase, row: int = 0) -> list[tuple[str, str]]:
        """Return the text and origin of each token of a row: "draft", "relaxed", "residual" or "bonus".

        Special tokens are left out. If several tokens spell one character, the last of them has it.
        """
        ids: list[int] = []
        pieces, shown = [], ""
        columns = (column[row].tolist() for column in (self.tokens, self.source, self.relaxed))
        for token, source, relaxed in zip(*columns):
            if source < 0:
                continue
            ids.append(token)
            # Decoded with the tokens before it, because a token alone may lose its space or be part of a character;
            # U+FFFD at the end stands for a character that is not complete yet.
            text = str(tokenizer.decode(ids, skip_special_tokens=True))
            if len(text) > len(shown) and not text.endswith("\ufffd"):
                pieces.append((text[len(shown) :], "relaxed" if relaxed else SOURCES[source]))
                shown = text
        return pieces

    def importance_weights(self) -> torch.Tensor:
        """Return the product of p / v over the tokens of each row, float32 `[B]`: 1 for lossless verifiers.

        Averages of sampled rows with these weights are unbiased for the target's processed distribution if v > 0
        wherever p > 0. They do not correct for top-k, top-p and temperature, which p contains. In greedy decoding they
        have no meaning: v is a point mass.

        Raises:
            ValueError: if the verifier does not compute v, so that `log_prob` is NaN.
        """
        emitted = self.source >= 0
        if self.log_prob[emitted].isnan().any():
            raise ValueError(
                "importance weights need a verifier with an emitted distribution, but `log_prob` is NaN; use "
                "lossless, static, diversed, spec_cascade, fuzzy, contrastive or block."
            )
        return (self.log_prob_target - self.log_prob).masked_fill(~emitted, 0.0).sum(1).exp()


@dataclass
class GenerateDiversedOutput(GenerateDecoderOnlyOutput):
    """Output of `generate` with a verifier and `return_dict_in_generate=True`.

    `sequences`, `scores` and `logits` are as in transformers: the target's processed scores and raw logits for every
    emitted token, zeros after a row's end. The cache (`cache`, before transformers 5.24 `past_key_values`) is None,
    because no cache of transformers supports rows of different lengths.

    Attributes:
        stats: acceptance counters for the whole batch, with `per_row`.
        token_records: origin of each token; None unless `output_token_records=True`.
    """

    stats: SpeculativeStats | None = None
    token_records: TokenRecords | None = None
