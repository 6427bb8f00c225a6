"""Drafting: gamma cheap steps of the draft model for a whole batch. Does not verify."""

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from hf_diversed import _compat
from hf_diversed.generation.processing import BlockProcessor, RaggedRows
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.outputs import DraftOutput
from hf_diversed.sampling import draw, draw_noise, first_true


class Drafter(Protocol):
    """What the loop asks of whatever proposes tokens.

    Attributes:
        num_forwards: forward passes of a draft model so far.
    """

    @property
    def num_forwards(self) -> int: ...

    def prefill(self, chunk_size: int | None = None) -> None:
        """Read all of the prompt but its last token."""

    def propose(self, counts: list[int]) -> tuple[DraftOutput | None, list[int]]:
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


class DiversedCandidateGenerator(CandidateGenerator):
    """Proposes tokens with a draft model, from its own cache and its own forward loop, for every row of a batch.

    Inside `diversed_decoding` it is driven by `propose`. It also keeps the contract of upstream's candidate generators
    (`get_candidates`), so at batch size 1 it can stand in upstream's assisted decoding.

    Args:
        assistant_model: the draft.
        rows: the batch's ids; drafted tokens are written behind each row's length.
        processor: what turns the draft's logits into the scores of q.
        vocab_size: V of the target. Ids that only the draft has are cut before its softmax; ids it lacks get
            probability 0.
        num_assistant_tokens: gamma.
        do_sample: draw from q, or take its argmax.
        is_eos: given at batch size 1, where drafting stops behind an EOS. It costs a host sync per step, and saves the
            steps.
        model_options: remaining arguments of `RaggedModel`.
    """

    def __init__(
        self,
        assistant_model: PreTrainedModel,
        rows: RaggedRows,
        processor: BlockProcessor,
        vocab_size: int,
        num_assistant_tokens: int,
        do_sample: bool,
        keep_raw_logits: bool = False,
        is_eos: Callable[[torch.Tensor], torch.Tensor] | None = None,
        **model_options,
    ):
        known_ids = _compat.known_ids(assistant_model)
        max_id = known_ids - 1 if known_ids < vocab_size else None
        self.model = RaggedModel(assistant_model, **model_options, max_id=max_id)
        self.rows = rows
        self.processor = processor
        self.vocab_size = vocab_size
        self.num_assistant_tokens = num_assistant_tokens
        self.do_sample = do_sample
        self.keep_raw_logits = keep_raw_logits
        self.is_eos = is_eos
        self._behind = 0  # nothing read yet
        self._fed = 0

    def prefill(self, chunk_size: int | None = None) -> None:
        """Read all of the prompt but its last token, which the first step feeds."""
        self.model.prefill(self.rows.ids[:, : self.rows.prompt_length - 1], chunk_size)
        self._behind = 1

    def get_candidates(self, input_ids: torch.Tensor, **kwargs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Upstream's contract: ids with candidates appended, `[B, L + gamma]`, and the scores of q, `[B, gamma, V]`.

        All rows of `input_ids` (long `[B, L]`) stand at the same length. What the cache already holds of them is
        reused.
        """
        rows, length = self.rows, input_ids.shape[1]
        if self._behind == 0:
            self.prefill()
        else:
            agreed = int(first_true(rows.ids[:, :length] != input_ids).min())
            self._behind = length - min(agreed, self._fed, length - 1)
        rows.ids[:, :length] = input_ids
        rows.advance([length - rows.lengths[0]] * len(rows.lengths))
        room = self.model.last_position - length
        drafted, _ = self.propose([min(self.num_assistant_tokens, room)] * len(rows.lengths))
        if drafted is None:
            return input_ids, None
        return torch.cat([input_ids, drafted.tokens], dim=1), drafted.scores

    @property
    def num_forwards(self) -> int:
        return self.model.num_forwards

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) of the batch only."""
        self.model.keep(rows)

    def rewind(self, all_accepted: bool) -> None:
        """Say how the last round ended. Its last draft was never fed: a fully accepted row lags by two."""
        self._behind = 2 if all_accepted else 1

    def propose(self, counts: list[int]) -> tuple[DraftOutput | None, list[int]]:
        """Draft `max(counts)` tokens for every row; see `Drafter.propose`."""
        steps: list[tuple] = []
        for step in range(max(counts)):
            feed = steps[-1][0][:, None] if steps else self.rows.last(self._behind)
            steps.append(self._step(step, feed, counts))
            if self.is_eos is not None and bool(self.is_eos(steps[-1][0]).all()):
                break
        self._fed = max(self.rows.lengths) + len(steps) - 1
        if not steps:
            return None, counts
        tokens, scores, raw, hidden = zip(*steps)
        draft = DraftOutput(
            scores=torch.cat(scores, dim=1),
            hidden=torch.cat(hidden, dim=1) if self.model.keep_hidden else None,
            raw_logits=torch.cat(raw, dim=1) if self.keep_raw_logits else None,
            tokens=torch.stack(tokens, dim=1),
            sampled=self.do_sample,
        )
        return draft, counts

    def _step(self, step: int, feed: torch.Tensor, counts: list[int]):
        """Draft a token per row from `feed`, ids `[B, 1 or 2]` that end `step` columns behind the row's length."""
        rows, offset = self.rows, step - feed.shape[1]
        logits, hidden = self.model(feed, rows.lengths_tensor + offset, [n + offset for n in rows.lengths], keep=1)
        raw = self._to_target_vocabulary(logits).to(rows.ids.device)
        scores = self.processor(rows, raw, offset=step, counts=[int(step < count) for count in counts])
        if self.do_sample:
            law = torch.softmax(scores[:, 0], dim=-1)
            tokens = draw(law, draw_noise(law))
        else:
            tokens = draw(scores[:, 0], None)
        rows.write(step, tokens)
        return tokens, scores, raw, hidden

    def _to_target_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        missing = self.vocab_size - logits.shape[-1]
        return F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[..., : self.vocab_size]
