"""The engine that runs the models uncompiled, with any processor and verifier, over shapes that change."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from hf_diversed.blocks import DraftOutput, Round, TargetOutput
from hf_diversed.generation.decoding import verify
from hf_diversed.generation.drafting import Drafter
from hf_diversed.generation.processing import BlockProcessor
from hf_diversed.generation.ragged_model import RaggedModel, RotaryLimit
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.sampling import RandomSource, RoundNoise
from hf_diversed.verifiers.base import Memory, Verifier


_COMPACT_BELOW = 0.75  # share of running rows; compacting copies the caches, which costs less than a round


@dataclass(eq=False)
class EagerEngine:
    """A drafter and a target model, each over its own cache; see `Engine`.

    Attributes:
        verifier: verifies the draft tokens. random_source: None for greedy decoding.
        keep_raw: also keep the target model's raw logits.
        reason: why this engine runs a call that asked for another; empty if it did not.
    """

    rows: RaggedRows
    target: RaggedModel
    drafter: Drafter
    processor: BlockProcessor
    verifier: Verifier
    random_source: RandomSource | None
    keep_raw: bool
    rotary_limit: RotaryLimit | None
    reason: str

    may_use_inference_mode: ClassVar[bool] = True

    @property
    def forwards(self) -> tuple[int, int]:
        return self.target.num_forwards, self.drafter.num_forwards

    def prefill(self, chunk_size: int | None) -> None:
        # The last token is fed in the first round; it is read here, too, where it decides how the others are rotated.
        last = self.rows.prompt_length - (self.rotary_limit is None)
        self.target.prefill(self.rows.ids[:, :last], chunk_size)
        self.drafter.prefill(chunk_size)

    def round(self, gamma: int, memory: Memory) -> Round:
        """Draft a block, score it in one target forward over each row's last token and its draft tokens, verify it."""
        rows = self.rows
        if self.rotary_limit is not None:
            gamma = self._within_rotary_limit(self.rotary_limit, gamma)
        draft, drafted = self.drafter.propose(rows.room(gamma))
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
        target = TargetOutput(scores, hidden, logits if self.keep_raw else None)
        round_noise = RoundNoise() if self.random_source is None else self.random_source.round_noise(scores)
        text = rows.view(max(rows.lengths.host), rows.lengths)
        return verify(self.verifier, text, draft, target, memory, rows.eos_ids_device, round_noise, rows.greedy)

    def ready(self, gamma: int, memory: Memory) -> bool:
        return True

    def _within_rotary_limit(self, limit: RotaryLimit, gamma: int) -> int:
        """Return gamma of the next round; recompute the cache where upstream's `generate` does so."""
        length = max(self.rows.lengths.host)
        if limit.rereads and self.rows.prompt_length <= limit.length == length - 1:
            self.target.prefill(self.rows.ids[:, :length])
        return limit.longest_block(length, gamma)

    def rewind(self, draft: DraftOutput | None, accepted: list[int]) -> None:
        if draft is not None:
            width = draft.tokens.shape[1]
            self.drafter.rewind(all_accepted=any(accepted[row] == width for row in self.rows.running))

    def should_compact(self, running: int) -> bool:
        return running <= _COMPACT_BELOW * len(self.rows.ends)

    def keep(self, kept: torch.Tensor) -> None:
        self.target.keep(kept)
        self.drafter.keep(kept)

    def close(self) -> None:
        """Do nothing: this engine borrows no memory."""

    def report(self) -> dict[str, Any]:
        return {"engine": "eager", "engine_reason": self.reason}
