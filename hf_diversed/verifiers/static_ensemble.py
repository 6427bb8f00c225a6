"""Static ensemble with a constant weight (arXiv 2604.07622; `assistant_ensemble_weight` in transformers)."""

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers.base import check_range
from hf_diversed.verifiers.mixture import MixtureVerifier, PerRowSetting, Weights


class StaticEnsembleVerifier(MixtureVerifier):
    """Verify against v = weight * p + (1 - weight) * q, with a constant weight on the target distribution.

    The expected acceptance probability is 1 - weight * TV(p, q), and TV(v, p) = (1 - weight) * TV(p, q). No other
    emitted distribution at this distance from p has a higher acceptance probability.

    Args:
        weight: in [0, 1]; 1 is lossless, 0 accepts every draft token.
        max_bias, max_ratio: see `MixtureVerifier`.

    Example:
        ```python
        model.generate(**inputs, assistant_model=draft, verifier=StaticEnsembleVerifier(0.7))
        ```
    """

    def __init__(
        self,
        weight: float,
        max_bias: PerRowSetting | None = None,
        max_ratio: PerRowSetting | None = None,
    ):
        super().__init__(max_bias, max_ratio)
        self.weight = check_range(
            "weight", weight, 0.0, 1.0, "1 is lossless, 0 accepts every draft token; 0.7 is a good start."
        )

    def weights(self, draft: DraftOutput, target: TargetOutput, row_values: dict[str, torch.Tensor]) -> Weights:
        return Weights(torch.full(draft.tokens.shape, self.weight, dtype=torch.float32, device=draft.tokens.device))
