"""Drafting by prompt lookup, alone or before a draft model: copies what followed the last n-gram before."""

from itertools import compress

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from hf_diversed import _compat
from hf_diversed.blocks import DraftOutput, Round
from hf_diversed.generation.confidence import StoppingRule
from hf_diversed.generation.drafting import (
    ModelDrafter,
    Step,
    before_bans,
    first_columns,
    join_steps,
    point_mass,
)
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows


class PromptLookupDrafter:
    """Generates draft tokens for every row as upstream's prompt lookup does for a single row.

    q is one-hot: the draft token has probability 1. It depends on the prefix only, so `w p + (1 - w) q` is a
    distribution. A row without a match has no draft tokens in that round. A draft block ends before the first EOS, and
    before the first token that a processor forbids (if that is its first token, upstream would try another match).

    Args:
        rows: ids of the batch; draft tokens are written after each row's length.
        whole_ngram: whether only matches of `max_ngram_size` ids count.
        processor: of the call; used without its warpers, to find forbidden tokens.
        prompt_mask: long `[B, S]`, 0 at left padding, which is not searched; None without padding.
        vocab_size: V of the target.
        num_tokens: gamma. max_ngram_size: maximum number of last ids to match.
        do_sample: value of `DraftOutput.sampled`.
    """

    num_forwards = 0
    reads_target = False
    rule = None  # there are no probabilities of a draft model

    def __init__(
        self,
        rows: RaggedRows,
        processor: BlockProcessor,
        prompt_mask: torch.Tensor | None,
        vocab_size: int,
        num_tokens: int,
        max_ngram_size: int,
        do_sample: bool,
        whole_ngram: bool = False,
    ):
        self.rows = rows
        self.vocab_size = vocab_size
        self.do_sample = do_sample
        self._min_match = max_ngram_size if whole_ngram else 0
        self._first = first_columns(prompt_mask, len(rows.ids))
        self._bans = processor.without(_compat.WARPERS)
        self._lookup = PromptLookupCandidateGenerator(
            eos_token_id=rows.eos_ids,
            num_output_tokens=num_tokens,
            max_matching_ngram_size=max_ngram_size,
            max_length=rows.ids.shape[1],
        )

    def prefill(self, chunk_size: int | None = None) -> None:
        """Do nothing: there is no cache to fill."""

    def rewind(self, round: Round, accepted: list[int]) -> None:
        """Do nothing: there is no cache to rewind."""

    def keep(self, rows: torch.Tensor) -> None:
        self._first = [self._first[row] for row in rows.tolist()]

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """See `ModelDrafter.propose`."""
        rows, lengths = self.rows, self.rows.lengths.host
        # The lookup runs on the host: copy all ids once instead of once per comparison.
        ids = rows.ids[:, : max(lengths)].cpu()
        found = [self._look_up(ids[row, : lengths[row]], row, count) for row, count in enumerate(counts.host)]
        lookups = [len(tokens) for tokens in found]
        own = PerRow(lookups, torch.tensor(lookups, device=rows.ids.device))
        if not any(lookups):
            return None, own
        tokens = torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=rows.filler_id)
        tokens = tokens.to(rows.ids.device)
        rows.write_block(tokens)
        scores = point_mass(tokens, self.vocab_size)
        own = before_bans(self._bans, rows, tokens, own, self.vocab_size)
        draft = join_steps(
            [Step(tokens, scores, scores, None)],
            own.device,
            rows.lengths.device,
            rows.eos_ids_device,
            sampled=self.do_sample,
            keep_raw_logits=True,
        )
        return draft, own

    def _look_up(self, ids: torch.Tensor, row: int, count: int) -> torch.Tensor:
        """Return up to `count` draft tokens after `ids`, long `[N]`."""
        text = ids[None, self._first[row] :]
        if count < 1 or (self._min_match and not _repeats(text[0], self._min_match)):
            return text[0, :0]
        candidates, _ = self._lookup.get_candidates(text)
        return candidates[0, text.shape[1] :][:count]


def _repeats(ids: torch.Tensor, size: int) -> bool:
    """Return whether the last `size` ids of `[N]` occur earlier."""
    return len(ids) > size and bool((ids[:-1].unfold(0, size, 1) == ids[-size:]).all(dim=-1).any())


class CopyingDrafter:
    """Copies draft tokens if the last n-gram of every running row occurred before; otherwise a draft model drafts.

    The choice depends on the text so far only, so each round verifies samples from a known q. Copied tokens are not
    processed by the draft model until it drafts again.

    Args:
        lookup: copies tokens. drafter: drafts up to `max_drafted` tokens per row in other rounds.
    """

    reads_target = False

    def __init__(self, lookup: PromptLookupDrafter, drafter: ModelDrafter, max_drafted: int):
        self.lookup, self.drafter, self.max_drafted = lookup, drafter, max_drafted
        self._copied = False

    @property
    def rule(self) -> StoppingRule | None:
        return self.drafter.rule

    @property
    def num_forwards(self) -> int:
        return self.drafter.num_forwards

    def prefill(self, chunk_size: int | None = None) -> None:
        self.drafter.prefill(chunk_size)

    def keep(self, rows: torch.Tensor) -> None:
        self.lookup.keep(rows)
        self.drafter.keep(rows)

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """See `ModelDrafter.propose`."""
        draft, copied = self.lookup.propose(counts)
        self._copied = draft is not None and all(map(bool, compress(copied.host, counts.host)))
        return (draft, copied) if self._copied else self.drafter.propose(counts.at_most(self.max_drafted))

    def rewind(self, round: Round, accepted: list[int]) -> None:
        if self._copied:
            self.drafter.skip(1 + max((accepted[row] for row in self.lookup.rows.running), default=0))
        else:
            self.drafter.rewind(round, accepted)
