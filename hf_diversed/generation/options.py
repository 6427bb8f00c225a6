"""The arguments that the library adds to `generate`. Imports neither torch nor transformers."""

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import torch
    from transformers.generation.candidate_generator import CandidateGenerator

    from hf_diversed.head import DiversedHead
    from hf_diversed.verifiers import Verifier


DEFAULT_NUM_ASSISTANT_TOKENS = 5
MAX_CONFIDENT_TOKENS = 16  # per round with the schedule "confidence", if no number is set
# The settings of a head that calls may change, by their names as arguments and in generation configs.
ARGUMENTS = {name: f"diversed_{name}" for name in ("strictness", "max_bias", "max_ratio")}
CONSTANT, CONFIDENCE = "constant", "confidence"  # values of `num_assistant_tokens_schedule`


@dataclass(frozen=True)
class Options:
    """Arguments that the hook adds to `generate`; None if not given."""

    diversed_head: "DiversedHead | str | os.PathLike | None" = None
    verifier: "Verifier | str | None" = None
    diversed_strictness: "float | list[float] | torch.Tensor | None" = None
    diversed_max_bias: "float | list[float] | torch.Tensor | None" = None
    diversed_max_ratio: "float | list[float] | torch.Tensor | None" = None
    output_token_records: bool | None = None
    candidate_generator: "CandidateGenerator | list[CandidateGenerator] | None" = None

    @classmethod
    def pop_from(cls, kwargs: dict) -> "Options":
        return cls(**{item.name: kwargs.pop(item.name, None) for item in fields(cls)})

    def names_verifier(self) -> bool:
        return self.diversed_head is not None or self.verifier is not None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def head_settings(self) -> dict[str, Any]:
        """Return the given settings of a head, by their names in `DiversedVerifier`."""
        return {name: value for name, argument in ARGUMENTS.items() if (value := getattr(self, argument)) is not None}
