"""Drafting: gamma steps of the draft model for a batch. Verification is in `loop.py`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import support
from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.confidence import StoppingRule
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows, is_one_of
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.sampling import RandomSource, draw


def active_draft_tokens(tokens: torch.Tensor, counts: torch.Tensor, eos_ids: torch.Tensor | None) -> torch.Tensor:
    """Mask of valid draft tokens, bool `[B, G]`: the first `counts` (long `[B]`) of each row, up to its first EOS."""
    before_eos = (~is_one_of(tokens, eos_ids)).long().cumprod(dim=-1).sum(dim=-1)
    reach = torch.minimum(counts, before_eos + 1)
    return torch.arange(tokens.shape[1], device=tokens.device) < reach[:, None]


class Drafter(CandidateGenerator):
    """Source of draft tokens for the ragged rows of a batch, and a candidate generator of transformers for one row.

    The loop of this library calls `prefill` once, `propose` in each round, `rewind` after each round with a draft
    block, when `rows` contains its tokens, and `keep` when finished rows are removed. Assisted decoding of
    transformers calls `get_candidates` and `update_candidate_strategy`, which run these methods for one row.

    A subclass sets `rows` and implements `propose` and `keep`; one with state also implements `rewind`. Draft tokens
    are drawn from the scores that `propose` returns, or are a function of the text (see `point_mass_block`).

    Attributes:
        rows: ids of the batch; draft tokens are written after each row's length.
        is_point_mass: whether the last draft block was a function of the text, so that q is 1 at each token.
        num_assistant_tokens: maximum number of candidates for one row.
        requires_model_outputs: whether it needs the target's outputs for all tokens, those of the prompt included.
    """

    rows: RaggedRows
    is_point_mass: bool = False
    num_assistant_tokens: int = 1
    _width = 0  # of the last draft block for one row; 0 without one

    @property
    def num_forwards(self) -> int:
        """Number of forward passes of the draft model so far."""
        return 0

    def prefill(self, chunk_size: int | None) -> None:
        """Process all tokens of the prompts but the last."""

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """Draft up to `counts` tokens per row and write them after each row's last token.

        Returns:
            the draft block, or None if no row has draft tokens; and the number of draft tokens per row.
        """
        raise NotImplementedError

    def rewind(self, width: int, accepted: list[int], scores: torch.Tensor) -> None:
        """Update the state after a round with draft tokens.

        Args:
            width: G, the number of columns of the draft block. accepted: number of accepted draft tokens per row.
            scores: the target's scores, float32 `[B, G + 1, V]`.
        """

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (long, ascending) of the batch."""
        raise NotImplementedError

    def record_outputs(self, model: PreTrainedModel) -> Callable[..., Any]:
        """Return the target as a function that passes its outputs to this source; the model if it reads none."""
        return model

    @torch.no_grad()
    def get_candidates(self, input_ids: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return `input_ids`, long `[1, L]`, with up to `num_assistant_tokens` draft tokens, and their scores.

        Returns:
            long `[1, L + N]`; and float32 `[1, N, V]`, the processed scores of q; None if N = 0 or q is a point mass.
        """
        self._append(input_ids)
        draft, counts = self.propose(self.rows.draft_limit(self.num_assistant_tokens))
        self._width = 0 if draft is None else draft.tokens.shape[1]
        if draft is None or not (count := counts.host[0]):
            return input_ids, None
        candidates = torch.cat([input_ids, draft.tokens[:, :count]], dim=1)
        return candidates, None if self.is_point_mass else draft.scores[:, :count]

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        """Update the state after a round: `input_ids` contains its tokens, `num_matches` of them draft tokens."""
        self._append(input_ids)
        if self._width:
            self.rewind(self._width, [int(num_matches)], scores)  # a tensor in older releases

    def _append(self, input_ids: torch.Tensor) -> None:
        """Append the ids that the row lacks. `input_ids`: long `[1, L]`, the text so far."""
        rows = self.rows
        new = input_ids[:, rows.lengths.host[0] :]
        rows.write_block(new)
        count = torch.full_like(rows.lengths.device, new.shape[1])
        rows.advance(PerRow([new.shape[1]], count), PerRow([0], torch.zeros_like(rows.done)))


class Step(NamedTuple):
    """N draft tokens of every row, long `[B, N]`, with scores of q, raw logits and hidden states, `[B, N, V or D]`."""

    tokens: torch.Tensor
    scores: torch.Tensor
    raw_logits: torch.Tensor | None
    hidden: torch.Tensor | None


def point_mass_block(
    rows: RaggedRows, found: Sequence[torch.Tensor], processor: BlockProcessor, vocab_size: int, sampled: bool
) -> tuple[DraftOutput | None, PerRow]:
    """Write draft tokens after each row's last token and return them as a block in which q is 1 at each token.

    Args:
        found: long `[N]` per row, on any device. processor: of the call; see `before_bans`.
        sampled: value of `DraftOutput.sampled`.

    Returns:
        the same as `Drafter.propose`. `scores` and `raw_logits` are the same tensor.
    """
    lengths, device = [len(tokens) for tokens in found], rows.ids.device
    counts = PerRow(lengths, torch.tensor(lengths, device=device))
    if not any(lengths):
        return None, counts
    tokens = pad_sequence([*found], batch_first=True, padding_value=rows.filler_id).to(device)
    rows.write_block(tokens)
    counts = before_bans(processor, rows, tokens, counts, vocab_size)
    scores = torch.full((*tokens.shape, vocab_size), -torch.inf, dtype=torch.float32, device=device)
    scores.scatter_(-1, tokens[..., None], 0.0)
    active = active_draft_tokens(tokens, counts.device, rows.eos_ids_device)
    draft = DraftOutput(
        scores, raw_logits=scores, tokens=tokens, sampled=sampled, active=active, lengths=rows.lengths.device
    )
    return draft, counts


def first_columns(prompt_mask: torch.Tensor | None, num_rows: int) -> list[int]:
    """Return the first column of each row after its left padding. `prompt_mask`: long `[B, S]`, 0 at padding."""
    return [0] * num_rows if prompt_mask is None else (prompt_mask != 0).long().argmax(dim=-1).tolist()


def before_bans(
    processor: BlockProcessor, rows: RaggedRows, tokens: torch.Tensor, counts: PerRow, vocab_size: int
) -> PerRow:
    """Return the number of tokens per row before the first one that a processor other than a warper forbids.

    Args:
        tokens: long `[B, N]`, already written after each row's last token. counts: number of tokens per row.
    """
    bans = [each for each in processor.processors if type(each) not in support.WARPERS]
    if not bans:
        return counts
    starts, kept = rows.lengths, [0] * len(tokens)
    # Column by column, as processors must not receive prefixes with a token that they forbid.
    for column in sorted({start + k for start, count in zip(starts.host, counts.host) for k in range(count)}):
        valid = [start + number for start, number in zip(starts.host, kept)]
        is_next = [end == column and number < count for end, number, count in zip(valid, kept, counts.host)]
        if not any(is_next):
            continue
        text = rows.drafted_view(column, PerRow(valid, torch.tensor(valid, device=tokens.device)))
        scores = torch.zeros(len(tokens), vocab_size, dtype=torch.float32, device=tokens.device)
        for each in bans:
            scores = each(text, scores)
        steps = (column - starts.device).clamp(0, tokens.shape[1] - 1)
        fits = scores.gather(1, tokens.gather(1, steps[:, None]))[:, 0] > torch.finfo(scores.dtype).min
        kept = [number + (new and fit) for number, new, fit in zip(kept, is_next, fits.tolist())]
    return PerRow(kept, torch.tensor(kept, device=tokens.device))


class ModelDrafter(Drafter):
    """Generates draft tokens for every row of a batch with a draft model and its own cache.

    It does not depend on the verifier.

    Args:
        assistant_model: the draft model.
        rows: ids of the batch; draft tokens are written after each row's length.
        processor: turns the draft model's logits into the scores of q.
        vocab_size: V of the target. Ids that only the draft model has are cut before its softmax; ids that it lacks
            get probability 0.
        random_source: samples from q; None for its argmax.
        keep_raw_logits: also return the draft model's unprocessed logits.
        runner: called as `runner(assistant_model, max_id=...)`; returns a `RaggedModel`.
        rule: ends blocks early; None to draft as many tokens as requested.
    """

    def __init__(
        self,
        assistant_model: PreTrainedModel,
        rows: RaggedRows,
        processor: BlockProcessor,
        vocab_size: int,
        random_source: RandomSource | None,
        keep_raw_logits: bool,
        runner: Callable[..., RaggedModel],
        rule: StoppingRule | None = None,
    ):
        known_ids = support.known_ids(assistant_model)
        self.model = runner(assistant_model, max_id=known_ids - 1 if known_ids < vocab_size else None)
        self.rows = rows
        self.processor = processor
        self.vocab_size = vocab_size
        self.random_source = random_source
        self.keep_raw_logits = keep_raw_logits
        self.rule = rule
        # As in upstream, a single row stops drafting after an EOS. On an accelerator the check would synchronise.
        self._stops_early = len(rows.ids) == 1 and rows.ids.device.type == "cpu"
        self._behind = 0  # number of tokens that the cache lacks
        self._least_behind = 2 if self.model.has_fixed_shapes else 1  # the last token is read again

    def prefill(self, chunk_size: int | None = None) -> None:
        """Process all tokens of the prompt except the last, which is an input of the first step."""
        self.model.prefill(self.rows.ids[:, : self.rows.prompt_length - 1], chunk_size)
        self._behind = self._least_behind

    @property
    def num_forwards(self) -> int:
        return self.model.num_forwards

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (long, ascending) of the batch."""
        self.model.keep(rows)

    def rewind(self, width: int, accepted: list[int], scores: torch.Tensor) -> None:
        """See `Drafter.rewind`."""
        # The cache lacks the last draft token, so a fully accepted row lags by two.
        self._behind = 2 if any(accepted[row] == width for row in self.rows.running) else self._least_behind
        if self.rule is not None:
            self.rule.update(accepted)
        self.model.rewind()

    def skip(self, count: int) -> None:
        """Record that the rows have up to `count` new tokens that this model did not draft."""
        self._behind += count

    def catch_up(self) -> None:
        """Process the tokens of rounds without draft tokens, except the last two, which the next step processes."""
        if self._behind > 2:
            starts = (self.rows.lengths + (-self._behind)).at_least(0)
            self.model(self.rows.last(self._behind)[:, :-2], starts, keep=1)
            self._behind = 2

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """Draft `max(counts)` tokens, or fewer by `rule`, for every row and write them after the row's last token.

        Args:
            counts: maximum number of draft tokens per row; 0 for finished rows.

        Returns:
            the draft block with the processed scores of q, on the rows' device, or None if no row has draft tokens;
            and the number of draft tokens per row, at most `counts`. The rest of the block is padding.
        """
        rows = self.rows
        if self.rule is not None:
            self.rule.begin(counts.host)
        if not max(counts.host):
            self.skip(1)  # the token that this round emits
            return None, counts
        self.catch_up()
        tokens, scores, raw, hidden = zip(*self._steps(counts))
        joined = torch.cat(tokens, dim=1)
        draft = DraftOutput(
            scores=torch.cat(scores, dim=1),
            hidden=None if hidden[0] is None else torch.cat(hidden, dim=1),
            raw_logits=torch.cat(raw, dim=1) if self.keep_raw_logits else None,
            tokens=joined,
            sampled=self.random_source is not None,
            active=active_draft_tokens(joined, counts.device, rows.eos_ids_device),
            lengths=rows.lengths.device,
        )
        return draft, counts.at_most(len(tokens))

    def _steps(self, counts: PerRow) -> list[Step]:
        """Run the steps of a block and write its tokens after the row's last token."""
        steps: list[Step] = []
        for step in range(max(counts.host)):
            feed = steps[-1].tokens if steps else self.rows.last(self._behind)
            steps.append(self._step(step, feed, counts))
            if self._ends_block(steps[-1]):
                break
        return steps

    def _ends_block(self, step: Step) -> bool:
        """Return whether to stop drafting after a step. With `rule`, this copies one number per row to the host."""
        if self.rule is None:
            return self._stops_early and bool(is_one_of(step.tokens, self.rows.eos_ids_device).all())
        confidence = self.rule.measure(step.scores[:, 0], step.tokens[:, 0])
        ended = is_one_of(step.tokens[:, 0], self.rows.eos_ids_device)
        return self.rule.stops(confidence.masked_fill(ended, 0.0).tolist())

    def _step(self, step: int, feed: torch.Tensor, counts: PerRow) -> Step:
        """Draft one token per row from `feed`, ids `[B, 1 or 2]` that end `step` columns after the row's length."""
        rows = self.rows
        logits, hidden = self.model(feed, rows.lengths + (step - feed.shape[1]), keep=1)
        here = PerRow([int(step < count) for count in counts.host], (counts.device > step).long())
        process = partial(self.processor, rows, offset=step, counts=here)
        raw, scores = draft_scores(logits.to(rows.ids.device), self.vocab_size, process)
        noise = None if self.random_source is None else self.random_source.draft_noise(scores[:, 0])
        tokens = draw_draft_tokens(scores[:, 0], noise)
        rows.write(step, tokens)
        return Step(tokens[:, None], scores, raw, hidden)


def draw_draft_tokens(scores: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """Return one token per row from q, long `[B]`. `scores` are the processed scores of q, `[B, V]`.

    Args:
        noise: see `draw`; None for the argmax.
    """
    if noise is None:
        return scores.argmax(dim=-1)
    return draw(torch.softmax(scores, dim=-1), noise)


def to_vocabulary(logits: torch.Tensor, size: int) -> torch.Tensor:
    """Cut logits `[..., V']` to the first `size` ids, or pad them with -inf (probability 0)."""
    missing = size - logits.shape[-1]
    return F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., :size]


def draft_scores(
    logits: torch.Tensor, size: int, process: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return raw logits and processed scores of q, `[B, N, size]`, from logits `[B, N, V']`.

    Ids that the draft model lacks have probability 0, unless `process` excludes all others.
    """
    raw, known = to_vocabulary(logits, size), logits.shape[-1]
    if known >= size:
        return raw, process(raw)
    lowest = logits.amax(dim=-1, keepdim=True) - 1e4  # finite, and its probability rounds to 0
    scores = process(torch.cat([logits, lowest.expand(-1, -1, size - known)], dim=-1))
    others_excluded = (scores[..., :known] == -torch.inf).all(dim=-1, keepdim=True)
    lacked = scores[..., known:].masked_fill(~others_excluded, -torch.inf)
    return raw, torch.cat([scores[..., :known], lacked], dim=-1)
