"""Rules that end a draft block early, from the draft model's probabilities.

A block may end after a draft token, depending on that token and earlier ones. A drafted token is never dropped.
"""

import math
from collections.abc import Sequence

import torch

from hf_diversed.generation.measurements import ConfidenceFit


# Cost of a draft token in target forwards, used without measured times. Measured: 0.15 to 0.45 for draft models of a
# tenth to a third of the target's parameters.
DEFAULT_COST = 0.3
_CLIP = 1e-3  # distance of a probability from 0 and 1, so that its logit is finite


class ConfidenceRule:
    """Ends a block once another draft token is not expected to increase tokens per second (as in arXiv 2405.19715).

    Drafting continues while the mean of S over the running rows satisfies S * a > R * c. S is the probability that
    all draft tokens of a row are accepted, a product of estimates from max q, and 0 for rows that cannot draft more. a
    is the mean acceptance, R the tokens per row and target-forward time so far, and c the cost of a draft token.

    Args:
        fit: estimates; a new one makes decisions depend on this call only.
        cost: time of one more draft token, in target forwards.
    """

    def __init__(self, fit: ConfidenceFit, cost: float = DEFAULT_COST):
        self.fit, self.cost = fit, cost
        self.begin([])

    def begin(self, limits: Sequence[int]) -> None:
        """Start a block with at most `limits` draft tokens per row, 0 in finished rows."""
        self._limits = limits
        self._survival = [1.0] * len(limits)
        self._logits: list[list[float | None]] = []  # per draft token and row; None for an EOS

    def measure(self, scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the confidence in one draft token per row: `[B]` from scores of q `[B, V]` and ids `[B]`."""
        return torch.softmax(scores, dim=-1).amax(dim=-1)

    def stops(self, confidences: Sequence[float]) -> bool:
        """Return whether the block ends. `confidences`: of the last draft token of each row, 0 if it is an EOS."""
        self._logits.append([logit(value) if value > 0.0 else None for value in confidences])
        count, gain = len(self._logits), 0.0
        for row, value in enumerate(self._logits[-1]):
            self._survival[row] *= 0.0 if value is None else self.fit.acceptance(value)
            gain += self._survival[row] * (self._limits[row] > count)
        running = sum(limit > 0 for limit in self._limits)
        return not gain * self.fit.mean_acceptance > running * self.fit.rate(self.cost) * self.cost

    def update(self, accepted: Sequence[int]) -> None:
        """Record the number of accepted draft tokens per row of the block."""
        width, emitted = len(self._logits), []
        for row, (limit, count) in enumerate(zip(self._limits, accepted)):
            if limit:
                emitted.append(count + 1)
            for position in range(min(width, limit, count + 1)):
                if (value := self._logits[position][row]) is None:
                    break
                self.fit.update(value, position < count)
        if emitted:
            self.fit.add_round(sum(emitted) / len(emitted), width)


class ThresholdRule:
    """Ends a block after a draft token x with q(x) < `threshold`, as `assistant_confidence_threshold` in transformers.

    In a batch, the block ends once more than half of the running rows have had such a token or an EOS. The methods are
    those of `ConfidenceRule`.
    """

    def __init__(self, threshold: float):
        self.threshold = threshold

    def begin(self, limits: Sequence[int]) -> None:
        self._continues = [limit > 0 for limit in limits]
        self._running = sum(self._continues)

    def measure(self, scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, dim=-1).gather(-1, tokens[:, None]).squeeze(-1)

    def stops(self, confidences: Sequence[float]) -> bool:
        self._continues = [before and value >= self.threshold for before, value in zip(self._continues, confidences)]
        return 2 * sum(self._continues) < self._running

    def update(self, accepted: Sequence[int]) -> None:
        """Do nothing: the threshold is constant."""


# Decides after each draft token whether the block ends, once for all rows of a batch.
StoppingRule = ConfidenceRule | ThresholdRule


def logit(probability: float) -> float:
    """Return log(p / (1 - p)), with p clipped to [1e-3, 1 - 1e-3]."""
    clipped = min(max(probability, _CLIP), 1.0 - _CLIP)
    return math.log(clipped / (1.0 - clipped))
