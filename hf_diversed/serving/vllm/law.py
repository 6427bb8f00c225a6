"""Target logits with which stock rejection sampling does what a rule says. Needs torch only, no engine.

Engines verify exactly: a draft x ~ q is kept with probability min(1, p(x)/q(x)) and else replaced from
norm(max(p - q, 0)). So a rule needs no kernel of its own, only another law v in the target's place. As x is all that
was drafted, v need only say how x is judged: v(x) = q(x) P(x is kept), and v - q proportional to what replaces x, on
the tokens that may. All others have v = 0. Averaged over drafts the emitted law is the rule's own, and nothing else of
it is computed: a head that sees the drafted token is asked about that token alone, not about the vocabulary.

What the target's cut-offs (top-k, top-p, forbidden tokens) leave nothing of is never kept, whatever a rule says: here
drafts are drawn without them, where `generate` cuts both laws.

Letters: N drafted positions of all requests, flat; V vocabulary.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers.base import Verifier
from hf_diversed.verifiers.mixture import MixtureVerifier


# Dials that a request may have of its own, and where they change nothing.
NEUTRAL = {"quality": 0.5, "max_bias": 1.0, "max_ratio": 0.0}
LOSSLESS = 0
_GREEDY_BELOW = 1e-5  # vLLM's own limit of temperatures


@dataclass(frozen=True)
class Asked:
    """What one request wants.

    Attributes:
        rule: which of the deployment's rules, counted from 1; 0 leaves the target's law alone.
        quality, max_bias, max_ratio: as in `generate`, see `DiversedVerifier`.
    """

    rule: int = LOSSLESS
    quality: float = NEUTRAL["quality"]
    max_bias: float = NEUTRAL["max_bias"]
    max_ratio: float = NEUTRAL["max_ratio"]

    def at(self, temperature: float) -> "Asked":
        """The same where the request samples; a greedy one follows the target, whatever is sampled beside it."""
        return Asked() if temperature < _GREEDY_BELOW else self

    def row(self) -> list[float]:
        """Its row of the table that `served_logits` reads."""
        return [float(self.rule), *(getattr(self, name) for name in NEUTRAL)]


COLUMNS = len(Asked().row())


def served_logits(
    rules: Sequence[Verifier],
    present: Collection[Asked],
    table: torch.Tensor,
    target_logits: torch.Tensor,
    draft_probs: torch.Tensor | None,
    tokens: torch.Tensor,
) -> torch.Tensor:
    """Every position's logits by the rule and the dials of its request. A batch of several rules pays for each.

    Args:
        rules: the deployment's. present: what the requests of this batch want; what none of them wants costs nothing.
        table: float32 `[N, COLUMNS]`, `Asked.row` of every position's request.
        target_logits: float `[N, V]`, after temperature and cut-offs.
        draft_probs: float32 `[N, V]`, the law that each draft came from; None for drafts that were looked up.
        tokens: int `[N]`, the drafts; below 0 where there is none, and the logits stay.

    Returns:
        float32 `[N, V]`; rows that stay as they are keep their bits.
    """
    served = target_logits
    for index, rule in enumerate(rules, 1):
        wishes = [asked for asked in present if asked.rule == index]
        if not wishes:
            continue
        dials = {
            name: table[:, column, None]
            for column, (name, neutral) in enumerate(NEUTRAL.items(), 1)
            if any(getattr(asked, name) != neutral for asked in wishes)
        }
        mine = (table[:, 0] == index) & (tokens >= 0)
        relaxed = rule_logits(rule, target_logits, draft_probs, tokens.clamp_min(0).long(), dials)
        served = torch.where(mine[:, None], relaxed, served)
    return served


def rule_logits(
    rule: Verifier,
    target_logits: torch.Tensor,
    draft_probs: torch.Tensor | None,
    tokens: torch.Tensor,
    dials: dict[str, torch.Tensor],
) -> torch.Tensor:
    """log v of one rule at every position, float32 `[N, V]`; see the module for what v is.

    Args:
        rule: one that judges every position by itself. dials: float32 `[N, 1]` each, of rules that mix.
        tokens: long `[N]`. The others are those of `served_logits`.
    """
    drafted = tokens[:, None]
    p = torch.softmax(target_logits, dim=-1, dtype=torch.float32)
    q = torch.zeros_like(p).scatter_(-1, drafted, 1.0) if draft_probs is None else draft_probs
    draft = _Draft(scores=q.log()[:, None], tokens=drafted, sampled=True, law=q)
    # One position behind the drafted one is what rules expect, and what none of those that are served looks at.
    target = _Target(scores=target_logits.float()[:, None].expand(-1, 2, -1), law=p)
    told = {"dials": dials} if isinstance(rule, MixtureVerifier) else {}
    verdict = rule(drafted, draft, target, None, **told)
    kept = torch.where(target_logits.gather(-1, drafted) == -torch.inf, 0.0, verdict.accept_prob)
    return _logits(kept, verdict.replacement(torch.zeros_like(tokens)), q, drafted)


def _logits(kept: torch.Tensor, left: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor) -> torch.Tensor:
    """log v from the chance to keep each draft, `[N, 1]`, and the unnormalised law that replaces it, `[N, V]`."""
    # Where the rule may draw the rejected token once more, that counts as keeping it.
    again = left.gather(-1, drafted) / left.sum(-1, keepdim=True)
    kept = torch.lerp(kept, torch.ones_like(kept), again)
    left = left.scatter(-1, drafted, 0.0)
    of_draft = kept * q.gather(-1, drafted)
    open_to = left > 0.0
    under = torch.where(open_to, q, 0.0)
    rest = (1.0 - of_draft - under.sum(-1, keepdim=True)).clamp_min(0.0)
    v = torch.where(open_to, under + left * (rest / left.sum(-1, keepdim=True)), 0.0)
    # A draft that is kept for sure has all of v: rounding could otherwise reject it, and nothing would replace it.
    sure = kept >= 1.0
    return torch.where(sure, 0.0, v).scatter_(-1, drafted, torch.where(sure, 1.0, of_draft)).log()


@dataclass(eq=False)
class _Given:
    """A block of one position per row whose probabilities are at hand, so that nobody normalises scores again."""

    law: torch.Tensor = field(kw_only=True)

    def prob(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.law.gather(-1, tokens)

    def top_prob(self) -> torch.Tensor:
        return self.law.amax(-1, keepdim=True).expand(-1, self.scores.shape[1])  # type: ignore[attr-defined]

    def probs(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        if positions is not None:
            return self.law
        return self.law[:, None].expand(-1, self.scores.shape[1], -1)  # type: ignore[attr-defined]


@dataclass(eq=False)
class _Draft(_Given, DraftOutput):
    """See `_Given`."""


@dataclass(eq=False)
class _Target(_Given, TargetOutput):
    """See `_Given`."""
