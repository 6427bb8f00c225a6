"""Drafting: gamma cheap steps of the draft model for a whole batch. Does not verify."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.rows import PerRow, RaggedRows, is_one_of
from hf_diversed.sampling import RandomSource, draw, first_true


class Drafter(Protocol):
    """What the loop asks of whatever proposes tokens.

    Attributes:
        num_forwards: forward passes of a draft model so far.
    """

    @property
    def num_forwards(self) -> int: ...

    def prefill(self, chunk_size: int | None = None) -> None:
        """Read all of the prompt but its last token."""

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """Draft for every row and write the tokens behind it.

        Args:
            counts: per row, how many of its drafts will be looked at; 0 for finished rows.

        Returns:
            tokens and processed scores of q, on the rows' device, or None if nothing was drafted; and per row how
            many of the tokens are drafts of its own, at most its count. The others only fill up the block.
        """

    def rewind(self, all_accepted: bool) -> None:
        """Say how the round ended: whether some running row's drafts were all accepted."""

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) of the batch only."""


def active_drafts(tokens: torch.Tensor, counts: torch.Tensor, eos_ids: torch.Tensor | None) -> torch.Tensor:
    """Which drafts count, bool `[B, G]`: up to each row's number of them, long `[B]`, or its first drafted EOS."""
    reach = torch.minimum(counts, first_true(is_one_of(tokens, eos_ids)) + 1)
    return torch.arange(tokens.shape[1], device=tokens.device) < reach[:, None]


class DiversedCandidateGenerator:
    """Proposes tokens with any draft model, from its own cache and its own forward loop, for every row of a batch.

    Named after upstream's candidate generators, whose contract it keeps; it knows nothing of DIVERSED's rule. The loop
    drives it by `propose`; by `get_candidates` it can stand in upstream's assisted decoding at batch size 1.

    Args:
        assistant_model: the draft.
        rows: the batch's ids; drafted tokens are written behind each row's length.
        processor: what turns the draft's logits into the scores of q.
        vocab_size: V of the target. Ids that only the draft has are cut before its softmax; ids it lacks get
            probability 0.
        random_source: draws from q; None to take its argmax.
        runner: makes a `RaggedModel` of the draft. model_options: remaining arguments of `RaggedModel`.
    """

    def __init__(
        self,
        assistant_model: PreTrainedModel,
        rows: RaggedRows,
        processor: BlockProcessor,
        vocab_size: int,
        random_source: RandomSource | None,
        keep_raw_logits: bool = False,
        runner: Callable[..., RaggedModel] = RaggedModel,
        **model_options,
    ):
        known_ids = _compat.known_ids(assistant_model)
        max_id = known_ids - 1 if known_ids < vocab_size else None
        self.model = runner(assistant_model, **model_options, max_id=max_id)
        self.rows = rows
        self.processor = processor
        self.vocab_size = vocab_size
        self.random_source = random_source
        self.keep_raw_logits = keep_raw_logits
        # A single row stops drafting behind an EOS, as upstream does, where looking for one costs nothing: on a
        # device every look would make the host wait.
        self._stops_early = len(rows.ids) == 1 and rows.ids.device.type == "cpu"
        self._behind = 0  # nothing read yet

    def prefill(self, chunk_size: int | None = None) -> None:
        """Read all of the prompt but its last token, which the first step feeds."""
        self.model.prefill(self.rows.ids[:, : self.rows.prompt_length - 1], chunk_size)
        self._behind = 1

    @property
    def num_forwards(self) -> int:
        return self.model.num_forwards

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) of the batch only."""
        self.model.keep(rows)

    def rewind(self, all_accepted: bool) -> None:
        """Say how the last round ended. Its last draft was never fed: a fully accepted row lags by two."""
        self._behind = 2 if all_accepted else 1

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """Draft `max(counts)` tokens for every row; see `Drafter.propose`."""
        rows = self.rows
        steps: list[tuple] = []
        for step in range(max(counts.host)):
            feed = steps[-1][0][:, None] if steps else rows.last(self._behind)
            steps.append(self._step(step, feed, counts))
            if self._stops_early and bool(rows.is_eos(steps[-1][0]).all()):
                break
        if not steps:
            self._behind += 1  # by the token that this round emits
            return None, counts
        tokens, scores, raw, hidden = zip(*steps)
        drafted = torch.stack(tokens, dim=1)
        draft = DraftOutput(
            scores=torch.cat(scores, dim=1),
            hidden=torch.cat(hidden, dim=1) if self.model.keep_hidden else None,
            raw_logits=torch.cat(raw, dim=1) if self.keep_raw_logits else None,
            tokens=drafted,
            sampled=self.random_source is not None,
            active=active_drafts(drafted, counts.device, rows.eos_ids_device),
            lengths=rows.lengths.device,
        )
        return draft, counts.at_most(len(steps))

    def _step(self, step: int, feed: torch.Tensor, counts: PerRow):
        """Draft a token per row from `feed`, ids `[B, 1 or 2]` that end `step` columns behind the row's length."""
        rows = self.rows
        logits, hidden = self.model(feed, rows.lengths + (step - feed.shape[1]), keep=1)
        raw = to_vocabulary(logits, self.vocab_size).to(rows.ids.device)
        here = PerRow([int(step < count) for count in counts.host], (counts.device > step).long())
        scores = self.processor(rows, raw, offset=step, counts=here)
        noise = None if self.random_source is None else self.random_source.draft_noise(scores[:, 0])
        tokens = draw_drafts(scores[:, 0], noise, rows.greedy)
        rows.write(step, tokens)
        return tokens, scores, raw, hidden


def draw_drafts(scores: torch.Tensor, noise: torch.Tensor | None, greedy: torch.Tensor | None) -> torch.Tensor:
    """One token per row from q, whose processed scores are `[B, V]`: long `[B]`.

    Args:
        noise: see `draw`; None to take every row's best token. greedy: bool `[B]`, rows that take it all the same.
    """
    if noise is None:
        return scores.argmax(dim=-1)
    drawn = draw(torch.softmax(scores, dim=-1), noise)
    return drawn if greedy is None else torch.where(greedy, scores.argmax(dim=-1), drawn)


def to_vocabulary(logits: torch.Tensor, size: int) -> torch.Tensor:
    """Logits `[..., V']` over `size` ids: those that only the draft has are cut, those it lacks get probability 0."""
    missing = size - logits.shape[-1]
    return F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., :size]
