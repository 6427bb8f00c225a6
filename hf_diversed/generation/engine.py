"""What the decoding loop needs from an engine, which runs both models over their caches."""

from typing import Any, ClassVar, Protocol

import torch

from hf_diversed.blocks import DraftOutput, Round
from hf_diversed.generation.confidence import StoppingRule
from hf_diversed.generation.rows import PerRow, RaggedRows
from hf_diversed.verifiers.base import Verifier, VerifierState


class Drafter(Protocol):
    """Generates the draft tokens of an eager engine.

    Attributes:
        reads_target: whether it needs the target's outputs for all tokens, those of the prompt included.
    """

    @property
    def rule(self) -> StoppingRule | None:
        """Ends draft blocks early; None if every round has the requested length."""

    @property
    def reads_target(self) -> bool: ...

    @property
    def num_forwards(self) -> int:
        """Number of forward passes of the draft model so far."""

    def prefill(self, chunk_size: int | None) -> None:
        """Process all tokens of the prompts but the last."""

    def propose(self, counts: PerRow) -> tuple[DraftOutput | None, PerRow]:
        """Draft up to `counts` tokens per row and write them after each row's last token.

        Returns:
            the draft block, or None if no row has draft tokens; and the number of draft tokens per row.
        """

    def rewind(self, round: Round, accepted: list[int]) -> None:
        """Update the state after a round with draft tokens. `accepted`: number accepted per row."""

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows (long, ascending) of the batch."""


class Engine(Protocol):
    """Drafts, scores and verifies blocks of draft tokens for a batch of rows.

    Attributes:
        may_use_inference_mode: whether rounds may run under `torch.inference_mode`.
    """

    may_use_inference_mode: ClassVar[bool]

    @property
    def rows(self) -> RaggedRows:
        """The batch; draft tokens are written behind each row's length."""

    @property
    def verifier(self) -> Verifier: ...

    @property
    def rule(self) -> StoppingRule | None:
        """Ends draft blocks early; None if every round has the requested length."""

    @property
    def forwards(self) -> tuple[int, int]:
        """Number of forward passes so far, of the target model and of the draft model."""

    def prefill(self, chunk_size: int | None) -> None:
        """Fill both caches with all tokens of the prompts but the last, which are inputs of the first round."""

    def round(self, gamma: int, verifier_state: VerifierState) -> Round:
        """Draft up to `gamma` tokens per row, score them in one target forward, and verify them."""

    def ready(self, gamma: int, verifier_state: VerifierState) -> bool:
        """Whether a round of this length can start without compiling anything first."""

    def rewind(self, round: Round, accepted: list[int]) -> None:
        """Discard rejected draft tokens from the caches. `accepted`: number of accepted draft tokens per row."""

    def should_compact(self, running: int) -> bool:
        """Whether to continue with only the `running` rows, which copies their caches."""

    def keep(self, kept: torch.Tensor) -> None:
        """Continue with only these rows (long, ascending) of the batch."""

    def close(self) -> None:
        """Return borrowed memory, also after an error."""

    def report(self) -> dict[str, Any]:
        """Return how the rounds were run, as fields of `SpeculativeStats`."""
