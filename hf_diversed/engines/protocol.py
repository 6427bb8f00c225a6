"""What the round loop asks of whatever runs the models."""

from typing import Protocol

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.generation.rows import PerRow, RaggedRows


class Engine(Protocol):
    """Runs draft and target over the rows of one call, each on its own cache.

    Attributes:
        rows: the batch; drafted tokens are written behind each row's length.
        forwards: forward passes so far, of the target and of the draft.
    """

    rows: RaggedRows

    @property
    def forwards(self) -> tuple[int, int]: ...

    def prefill(self, chunk_size: int | None) -> None:
        """Read all of the prompts but their last tokens."""

    def block(self, room: PerRow) -> tuple[DraftOutput | None, TargetOutput]:
        """Draft up to `room` tokens per row and score them: q at G positions (None without drafts), p at G + 1."""

    def rewind(self, draft: DraftOutput | None, accepted: list[int]) -> None:
        """Say how many drafts of each row were kept; what was written behind them no longer counts."""

    def keep(self, kept: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) of the batch only."""
