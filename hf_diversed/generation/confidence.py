"""Default lengths of draft blocks, and rules that end a block early, from the draft model's probabilities.

A block may end after a draft token, depending on that token and earlier ones. A drafted token is never dropped.
"""

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from hf_diversed.support import weight_bytes


DEFAULT_NUM_ASSISTANT_TOKENS = 5
MAX_CONFIDENT_TOKENS = 16  # per round with the schedule "confidence", if no number is set
CONSTANT, CONFIDENCE = "constant", "confidence"  # values of `num_assistant_tokens_schedule`
MIN_COST = 0.05  # of a draft token in target forwards: overheads do not shrink with the weights
_CLIP = 1e-3  # distance of a probability from 0 and 1, so that its logit is finite


# Intercept and slope. Lossless verification of Qwen2.5-Coder 1.5B with 0.5B gave 0.64 and 0.64; replays on validation
# prompts of the embedded pair chose the lower slope, with which the first blocks of a call are shorter.
_PRIOR = (0.64, 0.5)
_PRIOR_PRECISION = (1.0, 4.0)  # chosen by replays on the embedded pair
_KEEP = 0.5 ** (1.0 / 512)  # per verified draft token
_PRIOR_ROUNDS, _PRIOR_WIDTH, _PRIOR_TOKENS = 4.0, 3.0, 3.0
_PRIOR_RATE, _PRIOR_WEIGHT = 0.8, 4.0  # acceptance rate, and its weight in draft tokens
_FORGET = 0.5 ** (1.0 / 64)  # per round; acceptance changes within a text


class ConfidenceFit:
    """Acceptance of draft tokens as a function of max q, and tokens per round, with exponential forgetting.

    The probability of acceptance is sigmoid(intercept + slope * logit(max q)). Each verified draft token makes one
    Newton step of the logistic regression, with a Gaussian prior.

    Attributes:
        parameters: intercept and slope.
    """

    def __init__(self) -> None:
        self._state = _PRIOR, (_PRIOR_PRECISION[0], 0.0, _PRIOR_PRECISION[1])
        self._counts = _PRIOR_WEIGHT * _PRIOR_RATE, _PRIOR_WEIGHT  # accepted, verified
        self._sums = _PRIOR_ROUNDS, _PRIOR_ROUNDS * _PRIOR_WIDTH, _PRIOR_ROUNDS * _PRIOR_TOKENS

    @property
    def parameters(self) -> tuple[float, float]:
        return self._state[0]

    def acceptance(self, logit: float) -> float:
        """Return the acceptance probability of a draft token."""
        intercept, slope = self.parameters
        return 1.0 / (1.0 + math.exp(-(intercept + slope * logit)))

    @property
    def mean_acceptance(self) -> float:
        return self._counts[0] / self._counts[1]

    def rate(self, cost: float) -> float:
        """Return the tokens per row and target-forward time, if a draft token costs `cost` target forwards."""
        rounds, drafted, tokens = self._sums
        return tokens / (rounds + cost * drafted)

    def update(self, logit: float, accepted: bool) -> None:
        """Record a verified draft token."""
        (intercept, slope), precision = self._state
        expected = 1.0 / (1.0 + math.exp(-(intercept + slope * logit)))
        weight, error = expected * (1.0 - expected), accepted - expected
        fresh = [(1.0 - _KEEP) * each for each in _PRIOR_PRECISION]  # the prior replaces forgotten data
        a, b, d = (_KEEP * old for old in precision)
        a, b, d = a + fresh[0] + weight, b + weight * logit, d + fresh[1] + weight * logit**2
        first = error + fresh[0] * (_PRIOR[0] - intercept)
        second = error * logit + fresh[1] * (_PRIOR[1] - slope)
        determinant = a * d - b * b
        intercept, slope = (
            intercept + (d * first - b * second) / determinant,
            slope + (a * second - b * first) / determinant,
        )
        self._state = (intercept, slope), (a, b, d)
        self._counts = _KEEP * self._counts[0] + accepted, _KEEP * self._counts[1] + 1.0

    def add_round(self, tokens: float, drafted: int) -> None:
        """Record a round that emitted `tokens` per row after a block of `drafted` draft tokens."""
        rounds, before, emitted = (_FORGET * total for total in self._sums)
        self._sums = rounds + 1.0, before + drafted, emitted + tokens


class ConfidenceRule:
    """Ends a block once another draft token is not expected to increase tokens per second (as in arXiv 2405.19715).

    Drafting continues while the mean of S over the running rows satisfies S * a > R * c. S is the probability that
    all draft tokens of a row are accepted, a product of estimates from max q, and 0 for rows that cannot draft more. a
    is the mean acceptance, R the tokens per row and target-forward time so far, and c the cost of a draft token.

    The estimates are those of this call only, so a seed determines the output.

    Args:
        cost: time of one more draft token, in target forwards. `for_models` estimates it.
    """

    def __init__(self, cost: float):
        self.fit, self.cost = ConfidenceFit(), cost
        self.begin([])

    @classmethod
    def for_models(cls, draft: PreTrainedModel, target: PreTrainedModel) -> "ConfidenceRule":
        """Return a rule whose cost is the draft model's bytes of weights over the target's.

        At small batch sizes, reading the weights limits a forward pass. Measured times would make the output depend
        on the machine.
        """
        return cls(max(weight_bytes(draft) / max(weight_bytes(target), 1), MIN_COST))

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
