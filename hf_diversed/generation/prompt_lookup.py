"""Drafting by prompt lookup: copies the tokens that followed an earlier occurrence of the last n-gram."""

import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from hf_diversed import _compat
from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.drafting import Step, join_steps
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.rows import PerRow, RaggedRows


class PromptLookupDrafter:
    """Generates draft tokens for every row as upstream's prompt lookup does for a single row.

    q is one-hot: the draft token has probability 1. It depends on the prefix only, so `w p + (1 - w) q` is a
    distribution. A row without a match has no draft tokens in that round. A draft block ends before the first EOS, and
    before the first token that a processor forbids (if that is its first token, upstream would try another match).

    Args:
        rows: ids of the batch; draft tokens are written after each row's length.
        processor: of the call; used without its warpers, to find forbidden tokens.
        prompt_mask: long `[B, S]`, 0 at left padding, which is not searched; None without padding.
        vocab_size: V of the target.
        num_tokens: gamma. max_ngram_size: maximum number of last ids to match.
        do_sample: value of `DraftOutput.sampled`.
    """

    num_forwards = 0
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
    ):
        self.rows = rows
        self.vocab_size = vocab_size
        self.do_sample = do_sample
        self._first = [0] * len(rows.ids)
        if prompt_mask is not None:
            self._first = (prompt_mask != 0).long().argmax(dim=-1).tolist()
        self._bans = processor.without(_compat.WARPERS)
        self._lookup = PromptLookupCandidateGenerator(
            eos_token_id=rows.eos_ids,
            num_output_tokens=num_tokens,
            max_matching_ngram_size=max_ngram_size,
            max_length=rows.ids.shape[1],
        )

    def prefill(self, chunk_size: int | None = None) -> None:
        """Do nothing: there is no cache to fill."""

    def rewind(self, width: int, accepted: list[int]) -> None:
        """Do nothing: there is no cache to rewind."""

    def keep(self, rows: torch.Tensor) -> None:
        self._first = [self._first[row] for row in rows.tolist()]

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """See `DiversedCandidateGenerator.propose`."""
        rows, lengths = self.rows, self.rows.lengths.host
        # The lookup runs on the host: copy all ids once instead of once per comparison.
        ids = rows.ids[:, : max(lengths)].cpu()
        found = [self._look_up(ids[row, : lengths[row]], row, count) for row, count in enumerate(counts.host)]
        lookups = [len(tokens) for tokens in found]
        own = PerRow(lookups, torch.tensor(lookups, device=rows.ids.device))
        if not any(lookups):
            return None, own
        tokens = torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=rows.pad_id)
        tokens = tokens.to(rows.ids.device)
        for step, column in enumerate(tokens.unbind(dim=1)):
            rows.write(step, column)
        scores = torch.full((*tokens.shape, self.vocab_size), -torch.inf, dtype=torch.float32, device=tokens.device)
        scores.scatter_(-1, tokens[..., None], 0.0)
        own = self._before_bans(tokens, own)
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
        if count < 1:
            return text[0, :0]
        candidates, _ = self._lookup.get_candidates(text)
        return candidates[0, text.shape[1] :][:count]

    def _before_bans(self, tokens: torch.Tensor, counts: PerRow) -> PerRow:
        """Return the number of tokens per row before the first one that a processor forbids."""
        if not self._bans.processors:
            return counts
        even = torch.zeros(*tokens.shape, self.vocab_size, dtype=torch.float32, device=tokens.device)
        allowed = self._bans(self.rows, even, offset=0, counts=counts).gather(-1, tokens[..., None]).squeeze(-1)
        kept = (allowed > torch.finfo(allowed.dtype).min).long().cumprod(dim=-1).sum(dim=-1)
        kept = torch.minimum(kept, counts.device)
        return PerRow(kept.tolist(), kept)
