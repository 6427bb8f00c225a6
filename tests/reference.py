"""A naive speculative decoder as a reference: one row, no cache, no batching, full forwards only."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.sampling import RandomSource, draw


Process = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Randomness:
    """The random numbers of one row by round: noise of each draft token, uniforms, noise of the next token."""

    rounds: list[tuple[list[torch.Tensor], torch.Tensor | None, torch.Tensor]]


class Recorder(RandomSource):
    """Stores the random numbers that the loop draws, in order; subclasses may add which rows were kept."""

    def __init__(self):
        self.events: list[tuple[str, torch.Tensor | None]] = []

    def draft_noise(self, distribution):
        self.events.append(("draft", super().draft_noise(distribution)))
        return self.events[-1][1]

    def round_noise(self, scores):
        round_noise = super().round_noise(scores)
        self.events += [("round_noise", round_noise.uniforms), ("next", round_noise.noise)]
        return round_noise

    def of_row(self, row: int) -> Randomness:
        """Return the random numbers of one row of the batch, wherever it was: rounds, each ended by the noise of its
        next token."""
        rounds, drafts, round_noise = [], [], None
        for kind, values in self.events:
            if kind == "kept":
                if row not in values.tolist():
                    break
                row = values.tolist().index(row)
                continue
            own = None if values is None else values[row : row + 1]
            if kind == "draft":
                drafts.append(own)
            elif kind == "round_noise":
                round_noise = own
            else:
                rounds.append((drafts, round_noise, own))
                drafts, round_noise = [], None
        return Randomness(rounds)


@dataclass
class Lookup:
    """A draft source that copies what followed the first earlier occurrence of the row's last tokens.

    `bans` maps ids `[1, L]` to the tokens that may not follow, bool `[V]`.
    """

    vocab_size: int
    num_tokens: int
    max_ngram_size: int
    bans: Callable[[torch.Tensor], torch.Tensor]

    def find(self, ids: torch.Tensor, room: int, eos_ids: Collection[int]) -> list[int]:
        """Return at most `room` tokens, up to the first EOS or banned token; empty if there is no match."""
        text, allowed = ids[0].tolist(), []
        for token in self._continuation(text)[:room]:
            if token in eos_ids or self.bans(torch.tensor([text + allowed]))[token]:
                break
            allowed.append(token)
        return allowed

    def _continuation(self, text: list[int]) -> list[int]:
        for size in range(min(self.max_ngram_size, len(text) - 1), 0, -1):
            for start in range(len(text) - size):
                if text[start : start + size] == text[-size:]:
                    return text[start + size : start + size + self.num_tokens]
        return []


@torch.no_grad()
def naive_decoding(
    target,
    draft,
    verifier,
    input_ids,
    max_new_tokens,
    gamma,
    eos_id: int | Collection[int] | None = None,
    process: Process = lambda ids, scores: scores,
    randomness: Randomness | None = None,
    stats: SpeculativeStats | None = None,
):
    """Decode one unpadded row (long `[1, S]`) by relaxed speculative decoding; returns long `[1, S + T]`.

    Greedy without `randomness`. Models return `.logits` and `.hidden_states`, or both as a pair; `draft` may be a
    `Lookup`. `process` maps ids `[1, L]` and scores `[1, V]` of the next token to scores. Adds counts to `stats`.
    """
    eos_ids = eos_id if isinstance(eos_id, Collection) else () if eos_id is None else (eos_id,)
    ids, limit, number = input_ids, input_ids.shape[1] + max_new_tokens, 0
    sampled = randomness is not None
    while ids.shape[1] < limit:
        noises, uniforms, last_noise = randomness.rounds[number] if sampled else ([], None, None)
        room, number = min(gamma, limit - ids.shape[1] - 1), number + 1
        if isinstance(draft, Lookup):
            block, q = _look_up(draft, ids, draft.find(ids, room, eos_ids), sampled)
        else:
            block, q = _draft(draft, ids, room, eos_ids, process, noises if sampled else None)
        count, kept = block.shape[1] - ids.shape[1], 0
        raw, hidden = (values[:, -count - 1 :] for values in _read(target, block))
        scores = [process(block[:, : ids.shape[1] + k], raw[0, k : k + 1]) for k in range(count + 1)]
        p, verdict = TargetOutput(torch.stack(scores, dim=1), hidden, raw), None
        if count:
            verdict = verifier(ids, q, p)
            while kept < count and (uniforms[0, kept] if sampled else 0.5) < verdict.accept_prob[0, kept]:
                kept += 1
        here = torch.tensor([kept])
        distribution = verdict.replacement(here) if kept < count else (p.probs(here) if sampled else p.at(here))
        ended = 0 < kept == count and int(block[0, -1]) in eos_ids
        ids = block[:, : ids.shape[1] + kept]
        if not ended:
            ids = torch.cat([ids, draw(distribution, last_noise)[:, None]], dim=1)
        if stats is not None:
            stats.add(_round_stats(verdict, count, kept, emitted=kept + (not ended)))
        if ended or int(ids[0, -1]) in eos_ids:
            return ids
    return ids


def _draft(model, ids, room, eos_ids, process, noises) -> tuple[torch.Tensor, DraftOutput | None]:
    """Draft token by token, up to an EOS; greedy without noises."""
    block, steps = ids, []
    for step in range(room):
        raw, hidden = _read(model, block)
        scores = process(block, raw[0, -1:])
        steps.append((scores[None], hidden[:, -1:], raw[:, -1:]))
        token = draw(scores, None) if noises is None else draw(torch.softmax(scores, -1), noises[step])
        block = torch.cat([block, token[:, None]], dim=1)
        if int(token) in eos_ids:
            break
    if not steps:
        return block, None
    scores, hidden, raw = (torch.cat(parts, dim=1) for parts in zip(*steps))
    return block, DraftOutput(scores, hidden, raw, tokens=block[:, ids.shape[1] :], sampled=noises is not None)


def _look_up(lookup: Lookup, ids, found: list[int], sampled: bool) -> tuple[torch.Tensor, DraftOutput | None]:
    """Return one-hot distributions of the tokens found."""
    if not found:
        return ids, None
    tokens = torch.tensor([found])
    scores = torch.full((1, len(found), lookup.vocab_size), -torch.inf).scatter(-1, tokens[..., None], 0.0)
    return torch.cat([ids, tokens], dim=1), DraftOutput(scores, raw_logits=scores, tokens=tokens, sampled=sampled)


def _round_stats(verdict: Verdict | None, count: int, kept: int, emitted: int) -> SpeculativeStats:
    """Return the counters of one round; means are over the draft tokens up to the first rejection."""
    judged = kept + (kept < count)
    stats = SpeculativeStats(1, count, kept, judged - kept, emitted, accepted_per_position=[1] * kept)
    if verdict is None:
        return stats
    nothing = [float("nan")] * judged
    weights = nothing if verdict.trace.weight is None else verdict.trace.weight[0, :judged].tolist()
    tvs = nothing if verdict.trace.tv is None else verdict.trace.tv[0, :judged].tolist()
    biases = [(1.0 - weight) * tv for weight, tv in zip(weights, tvs)]
    if verdict.trace.bias is not None:
        biases = verdict.trace.bias[0, :judged].tolist()
    for name, values in (("weight", weights), ("tv", tvs), ("bias", biases)):
        known = [value for value in values if value == value]
        setattr(stats, f"{name}_sum", sum(known))
        setattr(stats, f"{name}_count", len(known))
    return stats


def _read(model, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return raw logits and last hidden states."""
    out = model(ids, output_hidden_states=True)
    return out if isinstance(out, tuple) else (out.logits.float(), out.hidden_states[-1])
