"""Target logits with which stock rejection sampling does what a rule says. Needs torch only, no engine.

Engines verify exactly: a draft x ~ q is kept with probability min(1, p(x)/q(x)) and else replaced from
norm(max(p - q, 0)). So a rule needs no kernel of its own, only another law v in the target's place. As x is all that
was drafted, v need only say how x is judged: v(x) = q(x) P(x is kept), and v - q proportional to what replaces x, on
the tokens that may. All others have v = 0; a rule that mixes has a v at hand, w p + (1 - w) q, in which they are below
q. Averaged over drafts the emitted law is the rule's own, and nothing else of it is computed: a head that sees the
drafted token is asked about that token alone, not about the vocabulary.

What the target's cut-offs (top-k, top-p, forbidden tokens) leave nothing of is never kept, whatever a rule says: here
drafts are drawn without them, where `generate` cuts both laws.

Letters: N drafted positions of all requests, flat; V vocabulary.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers.base import Verifier
from hf_diversed.verifiers.mixture import MixtureVerifier
from hf_diversed.verifiers.weights import limit_bias


# Dials that a request may have of its own, and where they change nothing.
NEUTRAL = {"strictness": 0.5, "max_bias": 1.0, "max_ratio": 0.0}
LOSSLESS = 0
_GREEDY_BELOW = 1e-5  # vLLM's own limit of temperatures
_TINY, _MUCH = torch.finfo(torch.float32).tiny, 1e30
_SURE = 1e4  # a logit beside which no other has any probability in float32


@dataclass(frozen=True)
class Asked:
    """What one request wants.

    Attributes:
        rule: which of the deployment's rules, counted from 1; 0 leaves the target's law alone.
        strictness, max_bias, max_ratio: as in `generate`, see `DiversedVerifier`.
    """

    rule: int = LOSSLESS
    strictness: float = NEUTRAL["strictness"]
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
        rules: the deployment's. present: what the rows of this batch want; what none of them wants costs nothing.
        table: float32 `[N, COLUMNS]`, `Asked.row` of every row.
        target_logits: float `[N, V]`, after temperature and cut-offs.
        draft_probs: float32 `[N, V]`, the law that each draft came from; None for drafts that were looked up.
        tokens: int `[N]`, the drafts; any id where there is none, and lossless is what such a row wants.

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
        relaxed = rule_logits(rule, target_logits, draft_probs, tokens.long(), dials)
        if len(wishes) == len(present):
            return relaxed
        served = torch.where(table[:, :1] == index, relaxed, served)
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
    draft, target = _Draft(q, drafted), _Target(target_logits, p)
    cut = target_logits.gather(-1, drafted) == -torch.inf
    if isinstance(rule, MixtureVerifier):
        said, _ = limit_bias(rule.weights(draft, target, dials), draft, target, None, dials)
        # The drafted token's weight for all of them judges and replaces that token as weights of their own would.
        v = torch.lerp(q, p, torch.where(cut, 1.0, said.weight))
        sure = v.gather(-1, drafted) >= q.gather(-1, drafted)
    else:
        verdict = rule(drafted, draft, target, None)
        kept = torch.where(cut, 0.0, verdict.accept_prob)
        v, sure = _law(kept, verdict.replacement(torch.zeros_like(tokens)), q, drafted)
    # The logarithm of many zeros is ten times slower than that of anything else.
    logits = F.threshold(v.clamp_min_(_TINY).log_(), math.log(_TINY), -torch.inf, inplace=True)
    # A draft that is kept for sure has all of v: rounding could otherwise reject it, and nothing would replace it.
    return logits.scatter_(-1, drafted, torch.where(sure, _SURE, logits.gather(-1, drafted)))


def _law(
    kept: torch.Tensor, left: torch.Tensor, q: torch.Tensor, drafted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """v from the chance to keep each draft, `[N, 1]`, and the unnormalised law that replaces it, `[N, V]`; also which
    drafts are kept for sure, bool `[N, 1]`."""
    # Where the rule may draw the rejected token once more, that counts as keeping it.
    again = left.gather(-1, drafted) / left.sum(-1, keepdim=True)
    kept = torch.lerp(kept, torch.ones_like(kept), again)
    of_draft = kept * q.gather(-1, drafted)
    left = left.scatter(-1, drafted, 0.0)
    v = torch.minimum(q, left * _MUCH)  # q where something is left, else 0
    rest = (1.0 - of_draft - v.sum(-1, keepdim=True)).clamp_min(0.0)
    v = v.addcmul_(left, rest / left.sum(-1, keepdim=True).clamp_min(_TINY))
    return v.scatter_(-1, drafted, of_draft), kept >= 1.0


class _Given:
    """A block of one position per row whose law is at hand, so that nobody normalises scores again."""

    def __init__(self, law: torch.Tensor, width: int):
        self.law, self.width = law, width

    def prob(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.law.gather(-1, tokens)

    def top_prob(self) -> torch.Tensor:
        return self.law.amax(-1, keepdim=True).expand(-1, self.width)

    def probs(self, positions: torch.Tensor | None = None) -> torch.Tensor:
        return self.law[:, None].expand(-1, self.width, -1) if positions is None else self.law


class _Draft(_Given, DraftOutput):
    """What was drafted, float32 `[N, V]` and long `[N, 1]`. What few rules ask for is made when they do."""

    def __init__(self, law: torch.Tensor, tokens: torch.Tensor):
        super().__init__(law, 1)
        self.tokens, self.sampled = tokens, True

    @property
    def active(self) -> torch.Tensor:  # type: ignore[override]
        return torch.ones_like(self.tokens, dtype=torch.bool)

    @property
    def scores(self) -> torch.Tensor:  # type: ignore[override]
        return self.law.log()[:, None]


class _Target(_Given, TargetOutput):
    """The target at the drafted position, and once more behind it, where no rule that is served looks."""

    def __init__(self, logits: torch.Tensor, law: torch.Tensor):
        super().__init__(law, 2)
        self._logits = logits

    @property
    def scores(self) -> torch.Tensor:  # type: ignore[override]
        return self._logits.float()[:, None].expand(-1, 2, -1)
