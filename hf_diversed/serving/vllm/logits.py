"""Target logits with which vLLM's rejection sampling verifies as a given verifier does. Needs torch only, no engine.

Engines verify exactly: a draft token x ~ q is accepted with probability min(1, p(x)/q(x)) and otherwise replaced by a
sample from norm(max(p - q, 0)). A verifier therefore needs no kernel of its own, only another distribution v in the
target's place. For a given draft token x, v must satisfy v(x) = q(x) P(x is accepted), and v - q must be proportional
to the residual distribution on the tokens that may replace x; every other token has v <= q. A mixture verifier has
such a v directly: w p + (1 - w) q. Averaged over draft tokens, the emitted distribution is the verifier's own. A head
with token features is evaluated at the draft token alone, not at the whole vocabulary.

Tokens that the target's cut-offs (top-k, top-p, forbidden tokens) exclude are never accepted. vLLM draws draft tokens
without cut-offs, whereas `generate` applies them to both distributions.

Shapes: N draft positions of all requests, concatenated; V vocabulary.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers.base import AS_TRAINED, Verifier
from hf_diversed.verifiers.mixture import MixtureVerifier, limit_bias


LOSSLESS = 0
_GREEDY_BELOW = 1e-5  # vLLM's own limit for temperatures
_TINY, _HUGE = torch.finfo(torch.float32).tiny, 1e30
_CHUNK = 2**24  # numbers, 64 MiB
_CERTAIN = 1e4  # a logit beside which every other one has probability 0 in float32


@dataclass(frozen=True)
class RequestSettings:
    """How the draft tokens of one request are verified.

    Attributes:
        verifier: 1-based index into the deployment's verifiers; 0 keeps the target's distribution.
        strictness, max_bias, max_ratio: as in `generate`, see `DiversedVerifier`.
    """

    verifier: int = LOSSLESS
    strictness: float = AS_TRAINED
    max_bias: float = 1.0
    max_ratio: float = float("inf")

    def at(self, temperature: float) -> "RequestSettings":
        """Return these settings if the request samples, and lossless ones if it decodes greedily."""
        return RequestSettings() if temperature < _GREEDY_BELOW else self

    def row(self) -> list[float]:
        """Return the row of the table that `served_logits` reads."""
        return [float(self.verifier), *(getattr(self, name) for name in NEUTRAL)]


# Settings that a request may have of its own, with the values at which they change nothing.
NEUTRAL = {item.name: item.default for item in fields(RequestSettings) if item.name != "verifier"}
COLUMNS = len(RequestSettings().row())


@torch.no_grad()
def served_logits(
    verifiers: Sequence[Verifier],
    present: Collection[RequestSettings],
    table: torch.Tensor,
    target_logits: torch.Tensor,
    draft_probs: torch.Tensor | None,
    tokens: torch.Tensor,
) -> torch.Tensor:
    """Return the logits of every position under its request's verifier. Each verifier in a batch costs one pass.

    Positions are processed in chunks, because vLLM does not reserve memory for this function: it needs one buffer
    `[N, V]` for the result, and a few of up to `_CHUNK` numbers.

    Args:
        verifiers: the deployment's verifiers.
        present: the settings in this batch; verifiers and bounds that none of them uses are not computed.
        table: float32 `[N, COLUMNS]`, `RequestSettings.row` of every row.
        target_logits: float `[N, V]`, after temperature and cut-offs.
        draft_probs: float32 `[N, V]`, the distribution that each draft token was drawn from; None if all are one-hot.
        tokens: int `[N]`, the draft tokens; arbitrary ids in rows without one, whose settings must be lossless.
            Negative ids mark draft tokens that vLLM rejects, for example by a grammar; their rows are lossless.

    Returns:
        float32 `[N, V]`; lossless rows are bit-identical to `target_logits`.
    """
    chosen = torch.where(tokens < 0, LOSSLESS, table[:, 0])[:, None]
    tokens = tokens.clamp_min(0).long()
    values: dict[int, dict[str, torch.Tensor]] = {}  # by the index of each verifier in this batch
    for index in {settings.verifier for settings in present} - {LOSSLESS}:
        mine = [settings for settings in present if settings.verifier == index]
        values[index] = {
            name: table[:, column, None]
            for column, (name, neutral) in enumerate(NEUTRAL.items(), 1)
            if any(getattr(settings, name) != neutral for settings in mine)
        }
    if not values:
        return target_logits
    served = torch.empty_like(target_logits, dtype=torch.float32)
    size = max(1, _CHUNK // target_logits.shape[-1])
    for start in range(0, len(tokens), size):
        rows = slice(start, start + size)
        part, q = target_logits[rows], None if draft_probs is None else draft_probs[rows]
        for index, columns in values.items():
            settings_of_rows = {name: column[rows] for name, column in columns.items()}
            relaxed = verifier_logits(verifiers[index - 1], target_logits[rows], q, tokens[rows], settings_of_rows)
            part = torch.where(chosen[rows] == index, relaxed, part)
        served[rows] = part
    return served


def verifier_logits(
    verifier: Verifier,
    target_logits: torch.Tensor,
    draft_probs: torch.Tensor | None,
    tokens: torch.Tensor,
    values: dict[str, torch.Tensor],
) -> torch.Tensor:
    """Return log v of one verifier at every position, float32 `[N, V]`; the module's docstring defines v.

    Args:
        verifier: one that verifies each position independently.
        tokens: long `[N]`.
        values: strictness and bounds, float32 `[N, 1]` each, for mixture verifiers. The rest as in `served_logits`.
    """
    drafted = tokens[:, None]
    p = torch.softmax(target_logits, dim=-1, dtype=torch.float32)
    q = torch.zeros_like(p).scatter_(-1, drafted, 1.0) if draft_probs is None else draft_probs
    draft, target = _Draft(q, drafted), _Target(target_logits, p)
    excluded = target_logits.gather(-1, drafted) == -torch.inf
    if isinstance(verifier, MixtureVerifier):
        weights = limit_bias(verifier.weights(draft, target, values), draft, target, values)
        # The draft token's weight serves for every token: only that token is accepted or replaced.
        v = torch.lerp(q, p, torch.where(excluded, 1.0, weights.weight))
        certain = v.gather(-1, drafted) >= q.gather(-1, drafted)
    else:
        verdict = verifier(drafted, draft, target)
        accept_prob = torch.where(excluded, 0.0, verdict.accept_prob)
        v, certain = _emitted_probs(accept_prob, verdict.replacement(torch.zeros_like(tokens)), q, drafted)
    # The logarithm of many zeros is ten times slower than that of other numbers.
    logits = F.threshold(v.clamp_min_(_TINY).log_(), math.log(_TINY), -torch.inf, inplace=True)
    # A draft token with acceptance probability 1 gets all of v: rounding could otherwise reject it, with no residual.
    return logits.scatter_(-1, drafted, torch.where(certain, _CERTAIN, logits.gather(-1, drafted)))


def _emitted_probs(
    accept_prob: torch.Tensor, residual: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the emitted distribution v, and which draft tokens are accepted with certainty, bool `[N, 1]`.

    Args:
        accept_prob: `[N, 1]`. residual: unnormalised residual distribution, `[N, V]`.
    """
    # Emitting the draft token from the residual distribution equals accepting it, so its probability there is added.
    redraw_prob = residual.gather(-1, drafted) / residual.sum(-1, keepdim=True)
    accept_prob = torch.lerp(accept_prob, torch.ones_like(accept_prob), redraw_prob)
    draft_mass = accept_prob * q.gather(-1, drafted)
    residual = residual.scatter(-1, drafted, 0.0)
    v = torch.minimum(q, residual * _HUGE)  # q where the residual is positive, else 0
    remaining_mass = (1.0 - draft_mass - v.sum(-1, keepdim=True)).clamp_min(0.0)
    v = v.addcmul_(residual, remaining_mass / residual.sum(-1, keepdim=True).clamp_min(_TINY))
    return v.scatter_(-1, drafted, draft_mass), accept_prob >= 1.0


class _Given:
    """A block of one position per row with a normalised distribution, so that no scores are normalised again."""

    def __init__(self, distribution: torch.Tensor, width: int):
        self.distribution, self.width = distribution, width

    def prob(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.distribution.gather(-1, tokens)

    def top_prob(self) -> torch.Tensor:
        return self.distribution.amax(-1, keepdim=True).expand(-1, self.width)

    def probs(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        return self.distribution[:, None].expand(-1, self.width, -1) if positions is None else self.distribution


class _Draft(_Given, DraftOutput):
    """Draft distributions, float32 `[N, V]`, and draft tokens, long `[N, 1]`; rare fields are computed lazily."""

    def __init__(self, distribution: torch.Tensor, tokens: torch.Tensor):
        super().__init__(distribution, 1)
        self.tokens, self.sampled = tokens, True

    @property
    def active(self) -> torch.Tensor:  # type: ignore[override]
        return torch.ones_like(self.tokens, dtype=torch.bool)

    @property
    def scores(self) -> torch.Tensor:  # type: ignore[override]
        return self.distribution.log()[:, None]


class _Target(_Given, TargetOutput):
    """The target at the draft position, repeated for the bonus position, which no served verifier reads."""

    def __init__(self, logits: torch.Tensor, distribution: torch.Tensor):
        super().__init__(distribution, 2)
        self._logits = logits

    @property
    def scores(self) -> torch.Tensor:  # type: ignore[override]
        return self._logits.float()[:, None].expand(-1, 2, -1)
