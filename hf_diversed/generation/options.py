"""Arguments added to `generate`. Standard library only, so that torch is not imported."""

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    import torch

    from hf_diversed.head import DiversedHead
    from hf_diversed.verifiers import Verifier


@dataclass
class Options:
    """Arguments that the hook adds to `generate`."""

    diversed_head: "DiversedHead | str | os.PathLike | None" = None
    verifier: "Verifier | str | None" = None
    diversed_strictness: "float | list[float] | torch.Tensor | None" = None
    diversed_max_bias: "float | list[float] | torch.Tensor | None" = None
    diversed_bias_budget: "float | list[float] | torch.Tensor | None" = None
    diversed_max_ratio: "float | list[float] | torch.Tensor | None" = None
    diversed_max_drop: "float | list[float] | torch.Tensor | None" = None
    diversed_temperature: "list[float] | torch.Tensor | None" = None
    output_token_records: bool | None = None

    @classmethod
    def pop_from(cls, kwargs: dict) -> "Options":
        return cls(**{item.name: kwargs.pop(item.name, None) for item in fields(cls)})

    def names_verifier(self) -> bool:
        return self.diversed_head is not None or self.verifier is not None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}
