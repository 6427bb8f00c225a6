"""Bookkeeping of a call: rounds into statistics, positions into token records and scores. Never steers decoding."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput, Trace
from hf_diversed.generation.committing import Tally
from hf_diversed.generation.judging import Round
from hf_diversed.outputs import SOURCES, SpeculativeStats, TokenRecords
from hf_diversed.sampling import acceptance, total_variation
from hf_diversed.theory import expected_accepted


_DRAFT, _RESIDUAL, _BONUS = range(len(SOURCES))
_COLLECTORS: ContextVar[tuple[SpeculativeStats, ...]] = ContextVar("hf_diversed_stats", default=())


@contextmanager
def record_stats() -> Iterator[SpeculativeStats]:
    """Sum up the statistics of every relaxed `generate` call in the block, for callers that only get a tensor back.

    Blocks may be nested; each counts. They are bound to the current context: start threads with
    `contextvars.copy_context().run` to be counted.

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


@dataclass
class LoggedRound:
    """One round: which rows of the batch took part and what happened to each; tensors by row and draft."""

    rows: list[int]
    starts: list[int]
    drafted: list[int]
    accepted: list[int]
    accept_prob: torch.Tensor | None
    weight: torch.Tensor | None
    tv: torch.Tensor | None
    bias: torch.Tensor | None
    records: "RoundRecords | None"

    @property
    def num_positions(self) -> int:
        return 0 if self.accept_prob is None else self.accept_prob.shape[1]

    def expected_accepted(self) -> list[float]:
        """Per row, the accepted drafts to expect from the acceptance probabilities of all its drafts."""
        if self.accept_prob is None:
            return [0.0] * len(self.rows)
        return expected_accepted(self.accept_prob.cpu(), torch.tensor(self.drafted)).tolist()


@dataclass
class RoundRecords:
    """Everything about one round's G + 1 positions, `[B, G + 1]` each, in the layout of `TokenRecords`."""

    tokens: torch.Tensor
    source: torch.Tensor
    relaxed: torch.Tensor
    weight: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor
    tv: torch.Tensor
    bias: torch.Tensor
    strict_prob: torch.Tensor
    inputs: dict[str, torch.Tensor] | None = None


class RoundLog:
    """Collects rounds during decoding and settles the accounts at the end, when every row's true end is known.

    Args:
        strictnesses: the rows' dials, where the rule has one.
    """

    def __init__(self, strictnesses: Sequence[float] = ()) -> None:
        self.strictnesses = strictnesses
        self.rounds: list[LoggedRound] = []
        self._told = (0, 0)

    def append(self, origins: list[int], tally: Tally, trace: Trace | None, accept_prob, records=None) -> None:
        """File one round of the rows `origins`; `trace` and `accept_prob` are None for a round without drafts."""
        told = (None, None, None) if trace is None else (trace.weight, trace.tv, trace.bias)
        self.rounds.append(
            LoggedRound(origins, tally.starts, tally.drafted, tally.accepted, accept_prob, *told, records)
        )

    def latest(self, end: int, target_forwards: int, draft_forwards: int) -> tuple[TokenRecords, SpeculativeStats]:
        """The last round alone, cut at `end`: its records, and what it adds to the statistics. For a single row."""
        latest = self.rounds[-1:]
        before, self._told = self._told, (target_forwards, draft_forwards)
        stats = sum_up(latest, [end], target_forwards - before[0], draft_forwards - before[1], self.strictnesses)
        return merge_records(latest, [end], latest[0].starts[0]), stats

    def stats(self, ends: list[int], target_forwards: int, draft_forwards: int, **report: Any) -> SpeculativeStats:
        """Totals with `per_row`; also added to every `record_stats` block that this call runs in.

        `report`: more fields of the statistics, as the engine has them.
        """
        total = replace(sum_up(self.rounds, ends, target_forwards, draft_forwards, self.strictnesses), **report)
        for collector in _COLLECTORS.get():
            collector.add(total)
        return total

    def token_records(self, ends: list[int], prompt_length: int) -> TokenRecords:
        """Everything about every generated token."""
        return merge_records(self.rounds, ends, prompt_length)


def sum_up(
    rounds: list[LoggedRound],
    ends: list[int],
    target_forwards: int,
    draft_forwards: int,
    strictnesses: Sequence[float] = (),
) -> SpeculativeStats:
    """Totals of some rounds, with `per_row`; what lies behind a row's end does not count."""
    per_row = [
        SpeculativeStats(target_forwards=target_forwards, draft_forwards=draft_forwards) for _ in range(len(ends))
    ]
    for counters, strictness in zip(per_row, strictnesses):
        counters.strictness_sum, counters.strictness_count = strictness, 1
    for entry in rounds:
        told = [None if values is None else values.tolist() for values in (entry.weight, entry.tv, entry.bias)]
        expected = entry.expected_accepted()
        for row, origin in enumerate(entry.rows):
            counters = per_row[origin]
            verified = _count(counters, entry, row, ends[origin], expected[row])
            _average(counters, *(values and values[row][:verified] for values in told))
    total = SpeculativeStats()
    for counters in per_row:
        total.add(counters)
    total.target_forwards, total.draft_forwards, total.per_row = target_forwards, draft_forwards, per_row
    return total


def merge_records(rounds: list[LoggedRound], ends: list[int], prompt_length: int) -> TokenRecords:
    """Scatter the rounds' records into `[B, T]`, cutting every row at its end."""
    shape = (len(ends), max(ends) - prompt_length)
    nan = torch.full(shape, float("nan"))
    merged = {name: nan.clone() for name in ("weight", "p", "q", "tv", "bias", "strict_prob")}
    merged["tokens"] = torch.zeros(shape, dtype=torch.long)
    merged["source"] = torch.full(shape, -1, dtype=torch.int8)
    merged["relaxed"] = torch.zeros(shape, dtype=torch.bool)
    inputs: dict[str, torch.Tensor] = {}
    for entry in rounds:
        assert entry.records is not None
        begin = torch.tensor(entry.starts) - prompt_length
        origins = torch.tensor(entry.rows)
        room = torch.tensor(ends)[origins] - torch.tensor(entry.starts)
        count = torch.minimum(torch.tensor(entry.accepted) + 1, room)
        rows, positions = (torch.arange(entry.records.tokens.shape[1]) < count[:, None]).nonzero(as_tuple=True)
        columns = begin[rows] + positions
        for name, values in merged.items():
            values[origins[rows], columns] = getattr(entry.records, name).cpu()[rows, positions].to(values.dtype)
        for name, given in (entry.records.inputs or {}).items():
            kept = inputs.setdefault(name, torch.zeros(*shape, *given.shape[2:], dtype=given.dtype))
            kept[origins[rows], columns] = given.cpu()[rows, positions]
    return TokenRecords(**merged, inputs=inputs or None)


def _count(counters: SpeculativeStats, entry: LoggedRound, row: int, end: int, expected: float) -> int:
    """Add one row's share of one round and return its verified positions.

    What the row's end cuts off is neither drafted nor accepted. `expected` knows EOS and the length, but not where
    drafts that were never kept would have met another stop; taking off just what a stop did cut keeps it unbiased.
    """
    room = end - entry.starts[row]
    if room <= 0:
        return 0
    kept, drafted = entry.accepted[row], entry.drafted[row]
    if room <= kept:  # the end lies on an accepted draft
        kept = drafted = room
    rejected = int(kept < drafted)
    counters.num_rounds += 1
    counters.num_drafted += drafted
    counters.num_accepted += kept
    counters.num_rejected += rejected
    counters.num_emitted += min(kept + 1, room)
    counters.expected_accepted_sum += expected - (entry.accepted[row] - kept)
    counters.accepted_per_position += [0] * (entry.num_positions - len(counters.accepted_per_position))
    for position in range(kept):
        counters.accepted_per_position[position] += 1
    return kept + rejected


def _average(
    counters: SpeculativeStats, weight: list[float] | None, tv: list[float] | None, bias: list[float] | None
) -> None:
    if weight is not None:
        known = [w for w in weight if w == w]  # nan where a rule without weights decided
        counters.weight_sum += sum(known)
        counters.weight_count += len(known)
    if tv is not None:
        counters.tv_sum += sum(tv)
        counters.tv_count += len(tv)
    if bias is None and weight is not None and tv is not None:
        bias = [(1.0 - w) * distance for w, distance in zip(weight, tv)]
    if bias is not None:
        known = [value for value in bias if value == value]
        counters.bias_sum += sum(known)
        counters.bias_count += len(known)


def describe_round(round: Round) -> RoundRecords:
    """Records of one round at its G + 1 positions; those behind the emitted tokens are meaningless."""
    draft, target, verdict, outcome = round.draft, round.target, round.verdict, round.outcome
    batch_size = outcome.next_token.shape[0]
    if draft is None or verdict is None:
        p = target.prob(outcome.next_token[:, None])
        nan = torch.full_like(p, float("nan"))
        bonus = torch.full((batch_size, 1), _BONUS)
        relaxed = torch.zeros_like(bonus).bool()
        return RoundRecords(outcome.next_token[:, None], bonus, relaxed, nan, p, nan, nan, nan, nan)
    positions = torch.arange(draft.tokens.shape[1] + 1, device=draft.tokens.device)
    at_end = positions == outcome.num_accepted[:, None]
    is_bonus = at_end & (outcome.num_accepted >= outcome.num_drafted)[:, None]
    tokens = torch.where(at_end, outcome.next_token[:, None], F.pad(draft.tokens, (0, 1)))
    p = target.prob(tokens)
    nan = torch.full_like(p, float("nan"))
    q = F.pad(draft.prob(tokens[:, :-1]), (0, 1), value=float("nan")).masked_fill(is_bonus, float("nan"))
    source = torch.full_like(tokens, _DRAFT).masked_fill(at_end, _RESIDUAL).masked_fill(is_bonus, _BONUS)

    def at_drafts(values: torch.Tensor | None) -> torch.Tensor:
        return nan if values is None else F.pad(values, (0, 1), value=float("nan")).masked_fill(is_bonus, float("nan"))

    trace = verdict.trace
    inputs = trace.inputs and {
        name: F.pad(values, (0,) * (2 * values.ndim - 3) + (1,)) for name, values in trace.inputs.items()
    }
    tv = total_variation(target.probs()[:, :-1], draft.probs()) if trace.tv is None else trace.tv
    strict_prob = _strict_prob(draft, round)
    return RoundRecords(
        tokens=tokens,
        source=source,
        relaxed=_is_relaxed(strict_prob, round),
        weight=at_drafts(trace.weight),
        p=p,
        q=q,
        tv=at_drafts(tv),
        bias=at_drafts(_bias(trace, tv, target)),
        strict_prob=at_drafts(strict_prob),
        inputs=inputs,
    )


def _bias(trace: Trace, tv: torch.Tensor, target: TargetOutput) -> torch.Tensor | None:
    """TV(v, p) `[B, G]` itself, also where the rule itself only estimates it but tells its law; None for rules without
    weights."""
    if trace.weight is None:
        return None
    if trace.bias is None:
        return (1.0 - trace.weight) * tv
    if trace.emitted_probs is None:
        return trace.bias
    return total_variation(trace.emitted_probs(), target.probs()[:, :-1])


def _strict_prob(draft: DraftOutput, round: Round) -> torch.Tensor:
    """Chance that lossless verification would have kept each draft: float32 `[B, G]`, 0 or 1 in greedy rows."""
    assert round.verdict is not None
    target, strict = round.target, round.verdict.trace.strict_prob
    if round.round_noise.uniforms is None:
        return _is_best(draft, target).float()
    if strict is None:
        strict = acceptance(target.prob(draft.tokens), draft.prob(draft.tokens))
    if round.greedy is None:
        return strict
    return torch.where(round.greedy[:, None], _is_best(draft, target).float(), strict)


def _is_relaxed(strict_prob: torch.Tensor, round: Round) -> torch.Tensor:
    """bool `[B, G + 1]`: accepted drafts that lossless verification, with the same uniform, would have rejected."""
    uniforms = round.round_noise.uniforms
    refused = (0.5 if uniforms is None else uniforms) >= strict_prob
    accepted = torch.arange(strict_prob.shape[1], device=refused.device) < round.outcome.num_accepted[:, None]
    return F.pad(refused & accepted, (0, 1))


def _is_best(draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
    """bool `[B, G]`: drafts that are the target's argmax."""
    return target.scores[:, : draft.tokens.shape[1]].argmax(-1) == draft.tokens
