"""Statistics, token records, scores and streams of a call. Decoding does not use them."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from transformers.generation.streamers import BaseStreamer

from hf_diversed.blocks import BlockOutput, DraftOutput, Round, TargetOutput, Trace
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.outputs import SOURCES, GenerateDiversedOutput, SpeculativeStats, TokenRecords
from hf_diversed.sampling import acceptance, total_variation
from hf_diversed.verifiers.base import Verifier


_DRAFT, _RESIDUAL, _BONUS = range(len(SOURCES))
_COLLECTORS: ContextVar[tuple[SpeculativeStats, ...]] = ContextVar("hf_diversed_stats", default=())
_LOCK = threading.Lock()  # calls in several threads may add to one collector


@contextmanager
def record_stats() -> Iterator[SpeculativeStats]:
    """Sum the statistics of every `generate` call with a verifier in the block, for callers that only receive ids.

    Blocks can be nested; each counts every call in it. Only calls in the current context are counted. To include
    threads, start them with `contextvars.copy_context().run`.

    Example:
        ```python
        with hf_diversed.record_stats() as stats:
            pipe("Question: ...", diversed_head=head)
        print(stats.acceptance_rate)
        ```
    """
    stats = SpeculativeStats()
    token = _COLLECTORS.set((*_COLLECTORS.get(), stats))
    try:
        yield stats
    finally:
        _COLLECTORS.reset(token)


class RoundStreamer(BaseStreamer):
    """Streamer that receives each round with its records: `generate(..., streamer=...)`, batch size 1.

    Override `put_round`. Decoding without a verifier has no rounds and only calls `put`: once with the prompt, then
    with every token.

    Example:
        ```python
        class Printer(hf_diversed.RoundStreamer):
            def put_round(self, records, stats):
                print(records.tokens.tolist(), f"{stats.num_accepted} of {stats.num_drafted} accepted")
        ```
    """

    def put_round(self, records: TokenRecords, stats: SpeculativeStats) -> None:
        """Receive one round: the records of its tokens, `[1, N]`, and its statistics."""
        raise NotImplementedError

    def put(self, value: torch.Tensor) -> None:
        """Receive the prompt, then tokens; does nothing."""

    def end(self) -> None:
        """Called when decoding has ended; does nothing."""


@dataclass
class RecordedRound:
    """One round of some rows: counts on the host, one per row, and tensors `[B, G]`, None without draft tokens.

    Attributes:
        rows: index of each row in the original batch. starts: its length before the round.
        drafted, accepted, emitted: its numbers of tokens.
        num_positions: G, 0 without draft tokens.
        records: of its G + 1 positions; None unless token records are returned or streamed.
    """

    rows: list[int]
    starts: list[int]
    drafted: list[int]
    accepted: list[int]
    emitted: list[int]
    num_positions: int = 0
    weight: torch.Tensor | None = None
    tv: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    records: TokenRecords | None = None


class Recorder:
    """Collects the rounds of a call and builds its return value once every row has ended.

    Args:
        prompt_length: S. verifier: that of the call.
        streamer: receives the tokens of each round; None for no stream.
        requested: additional return values of the call: any of "records", "scores", "logits".
    """

    def __init__(self, prompt_length: int, verifier: Verifier, streamer: BaseStreamer | None, requested: set[str]):
        self.prompt_length, self.streamer, self.requested = prompt_length, streamer, requested
        self.strictness_per_row = verifier.strictness_per_row()
        self.rounds: list[RecordedRound] = []
        self._describes = "records" in requested or isinstance(streamer, RoundStreamer)
        self._columns: dict[str, list[torch.Tensor]] = {name: [] for name in ("scores", "logits") if name in requested}
        self._streamed_forwards = (0, 0)  # target and draft forwards in the statistics streamed so far

    def add(self, recorded: RecordedRound, round: Round) -> None:
        """Record a round. `recorded` has its counts; the tensors are added here."""
        if "scores" in self.requested:
            self._add_columns("scores", round.target.scores, recorded)
        if "logits" in self.requested and round.target.raw_logits is not None:
            self._add_columns("logits", round.target.raw_logits, recorded)
        records = recorded.records = describe_round(round) if self._describes else None
        if round.verdict is not None:
            trace = round.verdict.trace
            recorded.num_positions = round.verdict.accept_prob.shape[1]
            recorded.weight, recorded.tv, recorded.bias = trace.weight, trace.tv, trace.bias
            if records is not None:
                recorded.tv = records.tv[:, :-1] if trace.tv is None else trace.tv
                recorded.bias = None if trace.bias is None else records.bias[:, :-1]
        self.rounds.append(recorded)

    def _add_columns(self, name: str, scores: torch.Tensor, recorded: RecordedRound) -> None:
        """Store scores `[B, N, V]` as `[B, V]` per column; `result` sets those after a row's end to zero."""
        columns = self._columns[name]
        for row, (start, count) in enumerate(zip(recorded.starts, recorded.emitted)):
            first = start - self.prompt_length
            while len(columns) < first + count:
                columns.append(torch.zeros_like(scores[:, 0]))
            for k in range(count):
                columns[first + k][row] = scores[row, k]

    def scores_before(self, column: int) -> tuple[torch.Tensor, ...] | None:
        """Return the processed scores before a column of the ids; None if scores are not collected."""
        return tuple(self._columns["scores"][: column - self.prompt_length]) if "scores" in self.requested else None

    def stream(self, rows: RaggedRows, recorded: RecordedRound, forwards: tuple[int, int]) -> None:
        """Pass the tokens of a round to the streamer, after stopping criteria have been applied."""
        if self.streamer is None:
            return
        end = rows.ends[0] or rows.lengths.host[0]
        self.streamer.put(rows.ids[0, recorded.starts[0] : end].cpu().clone())
        if isinstance(self.streamer, RoundStreamer):
            before, self._streamed_forwards = self._streamed_forwards, forwards
            new = forwards[0] - before[0], forwards[1] - before[1]
            stats = sum_up([recorded], [end], new, self.strictness_per_row)
            self.streamer.put_round(merge_records([recorded], [end], recorded.starts[0]), stats)

    def result(
        self, rows: RaggedRows, forwards: tuple[int, int], report: dict[str, Any], as_dict: bool
    ) -> GenerateDiversedOutput | torch.Tensor:
        """Return the value of the call and add its statistics to every `record_stats` block.

        Args:
            forwards: number of forward passes of the target and of the draft model. report: see `Call.report`.
        """
        if self.streamer is not None:
            self.streamer.end()
        sequences, ends = rows.finished()
        stats = replace(sum_up(self.rounds, ends, forwards, self.strictness_per_row), **report)
        with _LOCK:
            for collector in _COLLECTORS.get():
                collector.add(stats)
        if not as_dict:
            return sequences
        ended_at = torch.tensor(ends, device=rows.ids.device)[:, None]
        columns = {
            name: tuple(
                column.masked_fill(ended_at <= length, 0.0)
                for length, column in zip(range(self.prompt_length, max(ends)), kept)
            )
            for name, kept in self._columns.items()
        }
        records = merge_records(self.rounds, ends, self.prompt_length) if "records" in self.requested else None
        return GenerateDiversedOutput(sequences=sequences, stats=stats, token_records=records, **columns)


def sum_up(
    rounds: list[RecordedRound], ends: list[int], forwards: tuple[int, int], strictness_per_row: Sequence[float]
) -> SpeculativeStats:
    """Return the statistics of some rounds, with `per_row`. Tokens after a row's end are not counted.

    Args:
        ends: final length per row. forwards: number of forward passes of the target and of the draft model.
    """
    target_forwards, draft_forwards = forwards
    per_row = [SpeculativeStats(target_forwards=target_forwards, draft_forwards=draft_forwards) for _ in ends]
    for row, counters in enumerate(per_row if strictness_per_row else ()):
        # Repeated as `generate` repeats prompts.
        counters.strictness_sum = strictness_per_row[row * len(strictness_per_row) // len(ends)]
        counters.strictness_count = 1
    for entry in rounds:
        traced = [None if values is None else values.tolist() for values in (entry.weight, entry.tv, entry.bias)]
        for row, origin in enumerate(entry.rows):
            counters = per_row[origin]
            verified = _add_counts(counters, entry, row, ends[origin])
            _add_diagnostics(counters, *(values and values[row][:verified] for values in traced))
    total = SpeculativeStats()
    for counters in per_row:
        total.add(counters)
    total.target_forwards, total.draft_forwards, total.per_row = target_forwards, draft_forwards, per_row
    return total


def merge_records(rounds: list[RecordedRound], ends: list[int], prompt_length: int) -> TokenRecords:
    """Merge the records of all rounds into `[B, T]`, up to each row's end."""
    shape = (len(ends), max(ends) - prompt_length)
    inputs: dict[str, torch.Tensor] = {}
    with torch.device("cpu"):  # the default device may be another
        nan = torch.full(shape, float("nan"), dtype=torch.float32)
        merged = {name: nan.clone() for name in ("weight", "p", "raw_p", "q", "tv", "bias", "log_prob", "strict_prob")}
        merged["tokens"] = torch.zeros(shape, dtype=torch.long)
        merged["source"] = torch.full(shape, -1, dtype=torch.int8)
        merged["relaxed"] = torch.zeros(shape, dtype=torch.bool)
        for entry in rounds:
            assert entry.records is not None
            starts, origins = torch.tensor(entry.starts), torch.tensor(entry.rows)
            remaining = torch.tensor(ends)[origins] - starts
            num_emitted = torch.minimum(torch.tensor(entry.accepted) + 1, remaining)
            is_emitted = torch.arange(entry.records.tokens.shape[1]) < num_emitted[:, None]
            rows, positions = is_emitted.nonzero(as_tuple=True)
            columns = starts[rows] - prompt_length + positions
            for name, values in merged.items():
                values[origins[rows], columns] = getattr(entry.records, name).cpu()[rows, positions].to(values.dtype)
            for name, values in (entry.records.inputs or {}).items():
                merged_input = inputs.setdefault(name, torch.zeros(*shape, *values.shape[2:], dtype=values.dtype))
                merged_input[origins[rows], columns] = values.cpu()[rows, positions]
    return TokenRecords(**merged, inputs=inputs or None)


def _add_counts(counters: SpeculativeStats, entry: RecordedRound, row: int, end: int) -> int:
    """Add one row's part of one round and return the number of its verified positions.

    Tokens after the row's end count neither as drafted nor as accepted.
    """
    remaining = end - entry.starts[row]
    if remaining <= 0:
        return 0
    kept, drafted = entry.accepted[row], entry.drafted[row]
    if remaining <= kept:  # the row ends on an accepted draft token
        kept = drafted = remaining
    rejected = int(kept < drafted)
    counters.num_rounds += 1
    counters.num_drafted += drafted
    counters.num_accepted += kept
    counters.num_rejected += rejected
    counters.num_emitted += min(kept + 1, remaining)
    counters.accepted_per_position += [0] * (entry.num_positions - len(counters.accepted_per_position))
    for position in range(kept):
        counters.accepted_per_position[position] += 1
    return kept + rejected


def _add_diagnostics(counters: SpeculativeStats, weight, tv, bias) -> None:
    """Add the values at a row's verified positions, each list[float] or None; NaN at positions without a value."""
    if bias is None and weight is not None and tv is not None:
        bias = [(1.0 - w) * distance for w, distance in zip(weight, tv)]
    for name, values in {"weight": weight, "tv": tv, "bias": bias}.items():
        known = [value for value in values or () if value == value]
        setattr(counters, f"{name}_sum", getattr(counters, f"{name}_sum") + sum(known))
        setattr(counters, f"{name}_count", getattr(counters, f"{name}_count") + len(known))


def describe_round(round: Round) -> TokenRecords:
    """Return the records of one round, `[B, G + 1]` on the device. Positions after emitted tokens are undefined."""
    draft, target = round.draft, round.target
    trace = Trace() if round.verdict is None else round.verdict.trace
    if draft is None:  # describe a block with no draft positions
        draft = DraftOutput(target.scores[:, :0], tokens=round.next_token[:, None][:, :0], sampled=False)
    positions = torch.arange(draft.tokens.shape[1] + 1, device=draft.tokens.device)
    at_end = positions == round.num_accepted[:, None]
    is_bonus = at_end & (round.num_accepted >= round.num_drafted)[:, None]
    tokens = torch.where(at_end, round.next_token[:, None], F.pad(draft.tokens, (0, 1)))
    p = target.prob(tokens)
    nan = torch.full_like(p, float("nan"))
    q = F.pad(draft.prob(tokens[:, :-1]), (0, 1), value=float("nan")).masked_fill(is_bonus, float("nan"))
    source = torch.full_like(tokens, _DRAFT).masked_fill(at_end, _RESIDUAL).masked_fill(is_bonus, _BONUS)

    def at_draft_positions(values: torch.Tensor | None) -> torch.Tensor:
        return nan if values is None else F.pad(values, (0, 1), value=float("nan")).masked_fill(is_bonus, float("nan"))

    inputs = trace.inputs and {  # one more position, in dimension 1
        name: F.pad(values, (0,) * (2 * values.ndim - 3) + (1,)) for name, values in trace.inputs.items()
    }
    tv = total_variation(target.probs()[:, :-1], draft.probs()) if trace.tv is None else trace.tv
    strict_prob = _strict_prob(draft, trace, round)
    assert target.raw_logits is not None, "raw logits are kept in calls with token records"
    return TokenRecords(
        tokens=tokens,
        source=source,
        relaxed=_is_relaxed(strict_prob, round),
        weight=at_draft_positions(trace.weight),
        p=p,
        raw_p=BlockOutput(target.raw_logits).prob(tokens),
        q=q,
        tv=at_draft_positions(tv),
        bias=at_draft_positions(_bias(trace, tv, target)),
        log_prob=_log_prob(tokens, is_bonus, round),
        strict_prob=at_draft_positions(strict_prob),
        inputs=inputs,
    )


def _bias(trace: Trace, tv: torch.Tensor, target: TargetOutput) -> torch.Tensor | None:
    """Return TV(v, p), `[B, G]`, computed from the emitted distribution if the trace has one.

    None for verifiers without weights.
    """
    if trace.weight is None:
        return None
    if trace.bias is None:
        return (1.0 - trace.weight) * tv
    if trace.emitted_probs is None:
        return trace.bias
    exact = total_variation(trace.emitted_probs(), target.probs()[:, :-1])
    return exact.masked_fill(trace.bias.isnan(), float("nan"))  # undefined outside the phase of `PhaseVerifier`


def _log_prob(tokens: torch.Tensor, is_bonus: torch.Tensor, round: Round) -> torch.Tensor:
    """Return `TokenRecords.log_prob` of emitted tokens, long `[B, N]`; `is_bonus`: bool, tokens drawn from p."""
    p = round.target.prob(tokens)
    if round.round_noise.noise is None:
        return torch.zeros_like(p)
    emitted_probs = None if round.verdict is None else round.verdict.trace.emitted_probs
    v = torch.full_like(p, float("nan"))
    if emitted_probs is not None:
        v = F.pad(emitted_probs().gather(-1, tokens[:, :-1, None]).squeeze(-1), (0, 1))
    return torch.where(is_bonus, p, v).log()


def _strict_prob(draft: DraftOutput, trace: Trace, round: Round) -> torch.Tensor:
    """Return the lossless acceptance probability per draft token: float32 `[B, G]`, 0 or 1 in greedy decoding."""
    target, strict = round.target, trace.strict_prob
    if round.round_noise.uniforms is None:
        return (target.scores[:, : draft.tokens.shape[1]].argmax(-1) == draft.tokens).float()
    return acceptance(target.prob(draft.tokens), draft.prob(draft.tokens)) if strict is None else strict


def _is_relaxed(strict_prob: torch.Tensor, round: Round) -> torch.Tensor:
    """Return accepted draft tokens that lossless verification rejects with the same uniforms, bool `[B, G + 1]`."""
    uniforms = round.round_noise.uniforms
    refused = (0.5 if uniforms is None else uniforms) >= strict_prob
    accepted = torch.arange(strict_prob.shape[1], device=refused.device) < round.num_accepted[:, None]
    return F.pad(refused & accepted, (0, 1))
