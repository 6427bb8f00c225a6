"""What the round loop asks of whatever runs the models."""

from typing import Any, ClassVar, Protocol

import torch

from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.verification import Round
from hf_diversed.verifiers.base import Memory


class Engine(Protocol):
    """Runs draft and target over the rows of one call, each on its own cache.

    Attributes:
        rows: the batch; drafted tokens are written behind each row's length.
        forwards: forward passes so far, of the target and of the draft.
        may_use_inference_mode: whether its rounds may run under `torch.inference_mode`.
    """

    rows: RaggedRows
    may_use_inference_mode: ClassVar[bool]

    @property
    def forwards(self) -> tuple[int, int]: ...

    def prefill(self, chunk_size: int | None) -> None:
        """Read all of the prompts but their last tokens."""

    def round(self, gamma: int, memory: Memory) -> Round:
        """Draft up to `gamma` tokens per row, score them in one target forward, and verify them."""

    def ready(self, gamma: int, memory: Memory) -> bool:
        """Whether a round of this length would start at once: nothing has to be compiled for it first."""

    def rewind(self, draft: DraftOutput | None, accepted: list[int]) -> None:
        """Say how many drafts of each row were kept; what was written behind them no longer counts."""

    def pays_to_keep(self, running: int) -> bool:
        """Whether a batch of only the running rows is worth the copies of its caches."""

    def keep(self, kept: torch.Tensor) -> None:
        """Go on with these rows (long, ascending) of the batch only."""

    def close(self) -> None:
        """Give back what was lent to the call, however it ended."""

    def report(self) -> dict[str, Any]:
        """How the rounds were run, by the names of `SpeculativeStats`."""
