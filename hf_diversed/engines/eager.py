"""The models as they are: any processor, any rule, shapes that change from round to round."""

from dataclasses import dataclass

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.generation.drafting import Drafter
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.rows import PerRow, RaggedRows


@dataclass(eq=False)
class EagerEngine:
    """A drafter and a target over caches of their own; see `Engine`.

    Attributes:
        keep_raw: also keep the target's raw logits.
    """

    rows: RaggedRows
    target: RaggedModel
    drafter: Drafter
    processor: BlockProcessor
    keep_raw: bool

    @property
    def forwards(self) -> tuple[int, int]:
        return self.target.num_forwards, self.drafter.num_forwards

    def prefill(self, chunk_size: int | None) -> None:
        self.target.prefill(self.rows.ids[:, : self.rows.prompt_length - 1], chunk_size)
        self.drafter.prefill(chunk_size)

    def block(self, room: PerRow) -> tuple[DraftOutput | None, TargetOutput]:
        """Draft, then one target forward over every row's last token and its drafts."""
        rows = self.rows
        draft, drafted = self.drafter.propose(room)
        last = rows.last(1)
        block = last if draft is None else torch.cat([last, draft.tokens], dim=1)
        logits, hidden = self.target(block, rows.lengths + (-1), keep=block.shape[1])
        logits = logits.to(rows.ids.device)
        ahead = (drafted + 1).at_most(block.shape[1])
        counts = PerRow(
            [count if end is None else 0 for count, end in zip(ahead.host, rows.ends)],
            ahead.device.masked_fill(rows.done, 0),
        )
        scores = self.processor(rows, logits, offset=0, counts=counts)
        return draft, TargetOutput(scores, hidden, logits if self.keep_raw else None)

    def rewind(self, draft: DraftOutput | None, accepted: list[int]) -> None:
        if draft is not None:
            width = draft.tokens.shape[1]
            self.drafter.rewind(all_accepted=any(accepted[row] == width for row in self.rows.running))

    def keep(self, kept: torch.Tensor) -> None:
        self.target.keep(kept)
        self.drafter.keep(kept)
