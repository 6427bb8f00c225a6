"""Prompt lookup: copies the tokens after an earlier occurrence of the last n-gram, alone or before a draft model."""

from itertools import compress

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.drafting import Drafter, ModelDrafter, first_columns, point_mass_block
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows


class PromptLookupDrafter(Drafter):
    """Generates draft tokens for every row as upstream's prompt lookup does for a single row.

    q is one-hot: the draft token has probability 1. It depends on the prefix only, so `w p + (1 - w) q` is a
    distribution. A row without a match has no draft tokens in that round. A draft block ends before the first EOS,
    before the first token that a processor forbids (if that is its first token, upstream would try another match), and
    before the first id that has no logit, such as the image token of some models.

    Args:
        rows: ids of the batch; draft tokens are written after each row's length.
        whole_ngram: whether only matches of `max_ngram_size` ids count.
        processor: of the call; see `before_bans`.
        prompt_mask: long `[B, S]`, 0 at left padding, which is not searched; None without padding.
        vocab_size: V of the target.
        num_tokens: gamma. max_ngram_size: maximum number of last ids to match.
        sampled: value of `DraftOutput.sampled`.
    """

    is_point_mass = True

    def __init__(
        self,
        rows: RaggedRows,
        processor: BlockProcessor,
        prompt_mask: torch.Tensor | None,
        vocab_size: int,
        num_tokens: int,
        max_ngram_size: int,
        sampled: bool,
        whole_ngram: bool = False,
    ):
        self.rows = rows
        self.processor = processor
        self.vocab_size = vocab_size
        self.sampled = sampled
        self._min_match = max_ngram_size if whole_ngram else 0
        self._first = first_columns(prompt_mask, len(rows.ids))
        self._lookup = PromptLookupCandidateGenerator(
            eos_token_id=rows.eos_ids,
            num_output_tokens=num_tokens,
            max_matching_ngram_size=max_ngram_size,
            max_length=rows.limit,
        )

    def keep(self, rows: torch.Tensor) -> None:
        self._first = [self._first[row] for row in rows.tolist()]

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """See `ModelDrafter.propose`."""
        return self.block(self.find(counts))

    def find(self, counts: PerRow) -> list[torch.Tensor]:
        """Return up to `counts` draft tokens per row, long `[N]` each, on the host."""
        lengths = self.rows.lengths.host
        # The lookup runs on the host: copy all ids once instead of once per comparison.
        ids = self.rows.ids[:, : max(lengths)].cpu()
        return [self._look_up(ids[row, : lengths[row]], row, count) for row, count in enumerate(counts.host)]

    def block(self, found: list[torch.Tensor]) -> tuple[DraftOutput | None, PerRow]:
        """Write the tokens returned by `find` after each row's last token; return the same as `propose`."""
        return point_mass_block(self.rows, found, self.processor, self.vocab_size, self.sampled)

    def _look_up(self, ids: torch.Tensor, row: int, count: int) -> torch.Tensor:
        """Return up to `count` draft tokens after `ids`, long `[N]`."""
        text = ids[None, self._first[row] :]
        if count < 1 or (self._min_match and not _repeats(text[0], self._min_match)):
            return text[0, :0]
        candidates, _ = self._lookup.get_candidates(text)
        found = candidates[0, text.shape[1] :][:count]
        return found[: int((found < self.vocab_size).cumprod(0).sum())]


def _repeats(ids: torch.Tensor, size: int) -> bool:
    """Return whether the last `size` ids of `[N]` occur earlier."""
    return len(ids) > size and bool((ids[:-1].unfold(0, size, 1) == ids[-size:]).all(dim=-1).any())


class CopyingDrafter(Drafter):
    """Copies draft tokens if the last n-gram of every running row occurred before; otherwise a draft model drafts.

    The choice depends on the text so far only, so each round verifies samples from a known q. Copied tokens are not
    processed by the draft model until it drafts again.

    Args:
        lookup: copies tokens. drafter: drafts up to `max_drafted` tokens per row in other rounds.
    """

    def __init__(self, lookup: PromptLookupDrafter, drafter: ModelDrafter, max_drafted: int):
        self.lookup, self.drafter, self.max_drafted = lookup, drafter, max_drafted
        self.rows = drafter.rows

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
        found = self.lookup.find(counts)
        has_matches = all(map(len, compress(found, counts.host)))
        draft, copied = self.lookup.block(found) if has_matches else (None, counts)
        # A processor may forbid all copied tokens of a row.
        self.is_point_mass = draft is not None and all(compress(copied.host, counts.host))
        return (draft, copied) if self.is_point_mass else self.drafter.propose(counts.at_most(self.max_drafted))

    def rewind(self, width: int, accepted: list[int], scores: torch.Tensor) -> None:
        if self.is_point_mass:
            self.drafter.skip(1 + max((accepted[row] for row in self.rows.running), default=0))
        else:
            self.drafter.rewind(width, accepted, scores)
