"""The interface between the round loop and the engine that runs the models."""

from typing import Any, ClassVar, Protocol

import torch

from hf_diversed.blocks import DraftOutput
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.generation.verification import Round
from hf_diversed.verifiers.base import Memory


class Engine(Protocol):
    """Runs draft and target model over the rows of one call, each with its own cache.

    Attributes:
        rows: the batch; draft tokens are written behind each row's length.
        forwards: number of forward passes so far, of the target model and of the draft model.
        may_use_inference_mode: whether rounds may run under `torch.inference_mode`.
    """

    rows: RaggedRows
    may_use_inference_mode: ClassVar[bool]

    @property
    def forwards(self) -> tuple[int, int]: ...

    def prefill(self, chunk_size: int | None) -> None:
        """Run both models over the prompts without their last tokens."""

    def round(self, gamma: int, memory: Memory) -> Round:
        """Draft up to `gamma` tokens per row, score them in one target forward, and verify them."""

    def ready(self, gamma: int, memory: Memory) -> bool:
        """Whether a round of this length can start without compiling anything first."""

    def rewind(self, draft: DraftOutput | None, accepted: list[int]) -> None:
        """Discard what the caches hold of draft tokens that were rejected.

        Args:
            accepted: number of accepted draft tokens per row.
        """

    def should_compact(self, running: int) -> bool:
        """Whether to continue with only the `running` rows, which copies their caches."""

    def keep(self, kept: torch.Tensor) -> None:
        """Continue with only these rows (long, ascending) of the batch."""

    def close(self) -> None:
        """Return borrowed memory, also after an error."""

    def report(self) -> dict[str, Any]:
        """How the rounds were run, as fields of `SpeculativeStats`."""
