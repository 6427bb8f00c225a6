"""Verification against `v = w p + (1 - w) q`, for any rule that supplies a weight per position (arXiv 2604.07622)."""

from dataclasses import dataclass

import torch

from hf_diversed.outputs import DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import acceptance
from hf_diversed.verifiers.base import Verifier, target_residual


@dataclass(frozen=True, eq=False)
class Weights:
    """What a mixing rule says of one block.

    Attributes:
        weight: float32 `[B, G]` in [0, 1], on the target.
        tv: float32 `[B, G]`, TV(p, q), if it was needed on the way. inputs: see `Verdict.inputs`.
    """

    weight: torch.Tensor
    tv: torch.Tensor | None = None
    inputs: dict[str, torch.Tensor] | None = None


class MixtureVerifier(Verifier):
    """Base of the mixing rules; subclasses implement `weights`.

    Sampling needs p(x), q(x) and w at the drafted tokens only; norm(max(v - q, 0)) = norm(max(p - q, 0)) does not
    depend on w. Greedy decoding keeps x iff it is the argmax of v, both laws taken at temperature 1, and replaces it
    by that argmax.
    """

    def weights(self, draft: DraftOutput, target: TargetOutput) -> Weights:
        """The weight at every drafted position.

        The weight may depend on the prefix only, never on the drafted token: otherwise v is no law.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement weights")

    def __call__(
        self, input_ids: torch.Tensor, draft: DraftOutput, target: TargetOutput, state: torch.Tensor | None = None
    ) -> Verdict:
        said = self.weights(draft, target)
        weight = said.weight
        if draft.sampled:
            accept_prob = acceptance(target.prob(draft.tokens), draft.prob(draft.tokens), weight)
            return Verdict(accept_prob, target_residual(draft, target), weight, said.tv, said.inputs)
        v = torch.lerp(draft.probs(), target.probs()[:, :-1], weight[..., None])
        # The ends follow the scores: softmax can round two different scores to one probability.
        best = torch.where(weight == 1.0, target.scores[:, :-1].argmax(-1), v.argmax(-1))
        best = torch.where(weight == 0.0, draft.tokens, best)
        rows = torch.arange(v.shape[0], device=v.device)

        def one_hot_best(positions: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(v[:, 0]).scatter_(-1, best[rows, positions, None], 1.0)

        return Verdict((best == draft.tokens).float(), one_hot_best, weight, said.tv, said.inputs)
