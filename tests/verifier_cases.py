"""Every registered verifier in a few settings, with its reference emitted distribution, for the matrix tests.

A new verifier adds its rows to `VERIFIER_CASES`. Reference distributions are computed in float64 from the papers'
formulas.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
import torch.nn.functional as F

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.verifiers import (
    BlockVerifier,
    ContrastiveVerifier,
    DiversedVerifier,
    FLyVerifier,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    LossyVerifier,
    MarsVerifier,
    PhaseVerifier,
    SpecCascadeVerifier,
    StaticEnsembleVerifier,
    TopKRelaxedVerifier,
    TypicalAcceptanceVerifier,
    Verifier,
)


GAMMA, VOCAB = 3, 6
TARGET_WIDTH, DRAFT_WIDTH = 4, 3
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Probs:
    """Inputs of a reference formula: float64 `[B, G, V]`; `weight` is the verifier's own, by token, or None.

    `scores` are the target's processed scores, None if the formula does not use them.
    """

    p: torch.Tensor
    q: torch.Tensor
    raw_p: torch.Tensor
    raw_q: torch.Tensor
    weight: torch.Tensor | None = None
    scores: torch.Tensor | None = None

    @classmethod
    def of(cls, draft: DraftOutput, target: TargetOutput, weight: torch.Tensor | None = None) -> "Probs":
        scores = (target.scores[:, :-1], draft.scores, target.raw_logits[:, :-1], draft.raw_logits)
        probs = [torch.softmax(values.double(), dim=-1) for values in scores]
        return cls(*probs, weight=None if weight is None else weight.double(), scores=scores[0].double())


def total_variation(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 0.5 * (a - b).abs().sum(-1)


def lossless_probs(probs: Probs) -> torch.Tensor:
    return probs.p


def mixture_probs(probs: Probs) -> torch.Tensor:
    return probs.weight * probs.p + (1.0 - probs.weight) * probs.q


def token_probs(probs: Probs) -> torch.Tensor:
    """Return the emitted distribution of per-token weights.

    Each token's weight removes that share of its excess q - p; the removed probability is spread over p > q.
    """
    taken = probs.weight * (probs.q - probs.p).clamp_min(0.0)
    lacking = F.normalize((probs.p - probs.q).clamp_min(0.0), p=1.0, dim=-1)
    return probs.q - taken + taken.sum(-1, keepdim=True) * lacking


def lenient_probs(probs: Probs, lenience: float) -> torch.Tensor:
    kept = torch.minimum(probs.q, probs.p / lenience)
    surplus = (probs.p - probs.q).clamp_min(0.0)
    return kept + (1.0 - kept.sum(-1, keepdim=True)) * F.normalize(surplus, p=1.0, dim=-1)


def cascade_probs(probs: Probs, rule: str, alpha: float) -> torch.Tensor:
    top_p, top_q = probs.raw_p.amax(-1, keepdim=True), probs.raw_q.amax(-1, keepdim=True)
    tv = total_variation(probs.p, probs.q)[..., None]
    kept = {
        "chow": top_q >= 1.0 - alpha,
        "diff": top_q >= top_p - alpha,
        "opt": top_q >= top_p - alpha * tv,
        "token_v1": probs.raw_q >= top_p - alpha,
        "token_v2": probs.raw_p >= top_p - alpha,
        "token_v3": probs.raw_p >= (1.0 - alpha) * top_p,
    }[rule]
    return probs.q * kept + (probs.q * ~kept).sum(-1, keepdim=True) * probs.p


def lossy_probs(probs: Probs, alpha: float, beta: float | None) -> torch.Tensor:
    ceiling = probs.p / (1.0 - alpha)
    kept = torch.minimum(probs.q, ceiling)
    if beta is not None:
        surplus = (probs.p / beta - probs.q).clamp_min(0.0)
        surplus = torch.where(surplus.sum(-1, keepdim=True) > 0.0, surplus, probs.p)
        return kept + (1.0 - kept.sum(-1, keepdim=True)) * F.normalize(surplus, p=1.0, dim=-1)
    low, high = torch.zeros_like(kept[..., :1]), torch.ones_like(kept[..., :1])
    for _ in range(60):
        middle = 0.5 * (low + high)
        short = torch.maximum(kept, middle * probs.p).sum(-1, keepdim=True) < 1.0
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return torch.maximum(kept, high * probs.p)


def fuzzy_probs(probs: Probs, threshold: float, divergence: str, confidence: float = 1.0) -> torch.Tensor:
    def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(a > 0.0, a * (a.log() - b.log()), 0.0).sum(-1)

    middle = 0.5 * (probs.p + probs.q)
    distance = {
        "kl": kl(probs.p, probs.q),
        "reverse_kl": kl(probs.q, probs.p),
        "js": 0.5 * (kl(probs.p, middle) + kl(probs.q, middle)),
        "tv": total_variation(probs.p, probs.q),
    }[divergence]
    close = (distance <= threshold) & (probs.p.amax(-1) <= confidence)
    return torch.where(close[..., None], probs.q, probs.p)


def contrastive_probs(probs: Probs, beta: float, alpha: float) -> torch.Tensor:
    smallest = probs.q.where(probs.q > 0.0, 1.0).amin(-1, keepdim=True)
    contrast = probs.p ** (1.0 + beta) * torch.maximum(probs.q, smallest) ** -beta
    plausible = (probs.p > 0.0) & (probs.p >= alpha * probs.p.amax(-1, keepdim=True))
    return F.normalize(contrast * plausible, p=1.0, dim=-1)


def gated_probs(probs: Probs, gate: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Keep draft tokens that pass the gate and replace all others by a draw from p."""
    kept = gate(probs.p)
    return probs.q * kept + (probs.q * ~kept).sum(-1, keepdim=True) * probs.p


def typical_gate(p: torch.Tensor, epsilon: float, delta: float) -> torch.Tensor:
    entropy = -torch.where(p > 0.0, p * p.log(), 0.0).sum(-1, keepdim=True)
    return p > (delta * torch.exp(-entropy)).clamp_max(epsilon)


def top_k_gate(p: torch.Tensor, top_k: int, delta: float) -> torch.Tensor:
    is_best = F.one_hot(p.argmax(-1), p.shape[-1]).bool()
    if top_k == 1:
        return is_best
    rank = (p[..., None, :] > p[..., :, None]).sum(-1)
    return is_best | ((rank < top_k) & (p > 0.0) & (p >= p.amax(-1, keepdim=True) - delta))


def mars_gate(probs: Probs, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the two best tokens are close, `[B, G, 1]`, and which tokens are the two best, `[B, G, V]`."""
    ordered = probs.scores.sort(-1, descending=True).values
    return ordered[..., 1:2] > theta * ordered[..., :1], probs.scores >= ordered[..., 1:2]


def mars_probs(probs: Probs, theta: float) -> torch.Tensor:
    close, two_best = mars_gate(probs, theta)
    return torch.where(close, gated_probs(probs, lambda p: two_best), probs.p)


def mars_best(probs: Probs, theta: float) -> torch.Tensor:
    close, two_best = mars_gate(probs, theta)
    drafted = probs.q.argmax(-1, keepdim=True)
    kept = (close & two_best).gather(-1, drafted)[..., 0]
    return torch.where(kept, drafted[..., 0], probs.p.argmax(-1))


def best(probs: Probs, emitted: Callable[[Probs], torch.Tensor]) -> torch.Tensor:
    return emitted(probs).argmax(-1)


def token_best(probs: Probs) -> torch.Tensor:
    """Return the argmax of the emitted distribution, computed as a mixture per token, so that ties stay exact.

    Rounded to six digits, the precision of the weights.
    """
    deficit = (probs.q - probs.p).clamp_min(0.0)
    average = ((probs.weight * deficit).sum(-1, keepdim=True) / deficit.sum(-1, keepdim=True)).nan_to_num(1.0)
    weight = torch.where(probs.p < probs.q, probs.weight, average)
    return mixture_probs(replace(probs, weight=weight)).round(decimals=6).argmax(-1)


def lenient_best(probs: Probs, lenience: float) -> torch.Tensor:
    if lenience == 1.0:  # lossless: of several best tokens only the target's argmax
        return best(probs, lossless_probs)
    drafted, top = probs.q.argmax(-1, keepdim=True), probs.p.max(-1)
    return torch.where(probs.p.gather(-1, drafted)[..., 0] >= lenience * top.values, drafted[..., 0], top.indices)


def fuzzy_best(probs: Probs, **setting) -> torch.Tensor:
    """Return the argmax of the chosen distribution; the condition uses p and q at temperature 1."""
    return best(probs, partial(fuzzy_probs, **setting))


def top_k_best(probs: Probs, top_k: int, delta: float) -> torch.Tensor:
    drafted = probs.q.argmax(-1, keepdim=True)
    kept = top_k_gate(probs.p, top_k, delta).gather(-1, drafted)[..., 0]
    return torch.where(kept, drafted[..., 0], probs.p.argmax(-1))


def cascade_best(probs: Probs, rule: str, alpha: float) -> torch.Tensor:
    one_hot = {name: F.one_hot(getattr(probs, name).argmax(-1), probs.p.shape[-1]).double() for name in ("p", "q")}
    return cascade_probs(replace(probs, **one_hot), rule, alpha).argmax(-1)


def random_head(head_type: str = "linear", features: str = "hidden", token_features: bool = False) -> DiversedHead:
    """Return a tiny head whose weights on the target spread over (0, 1)."""
    kind = {"head_type": head_type, "features": features, "token_features": token_features}
    config = DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, **kind, intermediate_size=5)
    head = DiversedHead(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


@dataclass(frozen=True)
class VerifierCase:
    """One verifier in one setting.

    Attributes:
        rule: its key in `VERIFIERS`.
        make: builds the verifier.
        emitted: reference emitted distribution, `[B, G, V]`; None for verifiers of blocks, which have their own tests.
        greedy: reference greedy token, `[B, G]`; None for the same verifiers.
        maximal: whether no other verifier with this emitted distribution accepts more.
        gated: whether a threshold decides, so that rounding may change the decision.
        agreeing: whether all draft tokens are accepted where p = q.
    """

    id: str
    rule: str
    make: Callable[[], Verifier]
    emitted: Callable[[Probs], torch.Tensor] | None
    greedy: Callable[[Probs], torch.Tensor] | None
    maximal: bool = True
    gated: bool = False
    agreeing: bool = True


def _lossless() -> VerifierCase:
    return VerifierCase(
        "lossless", "lossless", LosslessVerifier, lossless_probs, partial(best, emitted=lossless_probs)
    )


def _static(weight: float) -> VerifierCase:
    make = partial(StaticEnsembleVerifier, weight)
    return VerifierCase(f"static-{weight}", "static", make, mixture_probs, partial(best, emitted=mixture_probs))


def _diversed(id: str, head_type: str = "linear", features: str = "hidden", **settings) -> VerifierCase:
    def make() -> DiversedVerifier:
        return DiversedVerifier(random_head(head_type, features), **settings)

    return VerifierCase(f"diversed-{id}", "diversed", make, mixture_probs, partial(best, emitted=mixture_probs))


def _token(id: str, head_type: str = "linear", features: str = "distribution", **settings) -> VerifierCase:
    def make() -> DiversedVerifier:
        return DiversedVerifier(random_head(head_type, features, token_features=True), **settings)

    return VerifierCase(f"token-{id}", "diversed", make, token_probs, token_best)


def _lenient(lenience: float) -> VerifierCase:
    return VerifierCase(
        f"lenience-{lenience}",
        "lenience",
        partial(LenientVerifier, lenience),
        partial(lenient_probs, lenience=lenience),
        partial(lenient_best, lenience=lenience),
    )


def _cascade(rule: str, alpha: float) -> VerifierCase:
    setting = {"rule": rule, "alpha": alpha}
    return VerifierCase(
        f"{rule}{alpha:+}",
        "spec_cascade",
        partial(SpecCascadeVerifier, **setting),
        partial(cascade_probs, **setting),
        partial(cascade_best, **setting),
        gated=True,
        # Token cascades keep q on a set and p outside of it, which differs from q even where p = q.
        agreeing=not rule.startswith("token"),
    )


def _lossy(alpha: float, beta: float | None = None) -> VerifierCase:
    return VerifierCase(
        f"lossy-{alpha}-{beta}",
        "lossy",
        partial(LossyVerifier, alpha, beta),
        partial(lossy_probs, alpha=alpha, beta=beta),
        partial(lenient_best, lenience=1.0 - alpha),
        # Where little of p / beta is left, the residual is p; rounding decides when.
        maximal=beta is None or beta <= 1.0,
        gated=beta is not None and beta > 1.0,
    )


def _fuzzy(threshold: float, divergence: str, confidence: float = 1.0) -> VerifierCase:
    setting = {"threshold": threshold, "divergence": divergence, "confidence": confidence}
    return VerifierCase(
        f"fuzzy-{divergence}-{threshold}-{confidence}",
        "fuzzy",
        partial(FuzzyVerifier, **setting),
        partial(fuzzy_probs, **setting),
        partial(fuzzy_best, **setting),
        gated=True,
    )


def _contrastive(beta: float, alpha: float) -> VerifierCase:
    setting = {"beta": beta, "alpha": alpha}
    emitted = partial(contrastive_probs, **setting)
    return VerifierCase(
        f"contrastive-{beta}-{alpha}",
        "contrastive",
        partial(ContrastiveVerifier, **setting),
        emitted,
        partial(best, emitted=emitted),
        gated=True,
        agreeing=alpha == 0.0,
    )


def _typical(epsilon: float, delta: float) -> VerifierCase:
    setting = {"epsilon": epsilon, "delta": delta}
    return VerifierCase(
        f"typical-{epsilon}-{delta}",
        "typical",
        partial(TypicalAcceptanceVerifier, **setting),
        partial(gated_probs, gate=partial(typical_gate, **setting)),
        partial(best, emitted=lossless_probs),
        maximal=False,
        gated=True,
        agreeing=False,
    )


def _top_k_relaxed(top_k: int, delta: float) -> VerifierCase:
    setting = {"top_k": top_k, "delta": delta}
    return VerifierCase(
        f"top-k-{top_k}-{delta}",
        "top_k_relaxed",
        partial(TopKRelaxedVerifier, **setting),
        partial(gated_probs, gate=partial(top_k_gate, **setting)),
        partial(top_k_best, **setting),
        maximal=False,
        gated=True,
        agreeing=False,
    )


def _mars(theta: float) -> VerifierCase:
    return VerifierCase(
        f"mars-{theta}",
        "mars",
        partial(MarsVerifier, theta),
        partial(mars_probs, theta=theta),
        partial(mars_best, theta=theta),
        maximal=False,
        gated=True,
        agreeing=False,
    )


def _joint(id: str, rule: str, make: Callable[[], Verifier]) -> VerifierCase:
    return VerifierCase(id, rule, make, emitted=None, greedy=None)


BEGIN, END = 4, 5  # of the phases
VERIFIER_CASES = [
    _lossless(),
    _static(0.0),
    _static(0.3),
    _static(1.0),
    _diversed("linear"),
    _diversed("mlp", "mlp"),
    _diversed("distribution", features="distribution"),
    _diversed("both", "mlp", "both"),
    _diversed("strictness-0", strictness=0.0),
    _diversed("strictness-0.25", strictness=0.25),
    _diversed("strictness-0.75", strictness=0.75),
    _diversed("strictness-1", strictness=1.0),
    _diversed("max-bias-0.1", strictness=0.25, max_bias=0.1),
    _diversed("max-bias-0", strictness=0.0, max_bias=0.0),
    replace(_diversed("max-ratio-3", strictness=0.25, max_ratio=3.0), emitted=token_probs, greedy=token_best),
    _token("linear"),
    _token("mlp", "mlp"),
    _token("hidden", features="hidden"),
    _token("both", "mlp", "both"),
    _token("strictness-0", strictness=0.0),
    _token("strictness-0.3", strictness=0.3),
    _token("strictness-0.8", strictness=0.8),
    _token("strictness-1", strictness=1.0),
    _token("max-bias-0.1", strictness=0.25, max_bias=0.1),
    _token("max-bias-0", strictness=0.0, max_bias=0.0),
    _token("max-ratio-3", strictness=0.1, max_ratio=3.0),
    _token("max-ratio-1", strictness=0.0, max_ratio=1.0),
    _token("all-bounds", "mlp", strictness=0.1, max_bias=0.2, max_ratio=2.0),
    _lenient(1.0),
    _lenient(0.5),
    _lenient(0.1),
    _lossy(0.0),
    _lossy(0.3),
    _lossy(0.9),
    _lossy(0.5, 0.6),
    _lossy(0.5, 20.0),
    _cascade("chow", 0.4),
    _cascade("diff", 0.1),
    _cascade("diff", -1.0),
    _cascade("opt", 0.1),
    _cascade("opt", -0.25),
    _cascade("token_v1", 0.3),
    _cascade("token_v2", 0.2),
    _cascade("token_v3", 0.0),
    _cascade("token_v3", 0.5),
    _fuzzy(0.5, "kl"),
    _fuzzy(0.1, "js"),
    _fuzzy(0.4, "tv"),
    _fuzzy(0.3, "reverse_kl"),
    _fuzzy(5.0, "kl", 0.5),
    _fuzzy(0.0, "js"),
    _contrastive(0.5, 0.1),
    _contrastive(0.1, 0.0),
    _contrastive(0.0, 1.0),
    _typical(0.09, 0.3),
    _typical(0.3, 0.6),
    _top_k_relaxed(1, 0.0),
    _top_k_relaxed(3, 0.3),
    _top_k_relaxed(2, 1.0),
    _top_k_relaxed(10, 0.6),
    _mars(0.9),
    _mars(0.5),
    _mars(1.0),
    _joint("fly", "fly", FLyVerifier),
    _joint("fly-1", "fly", partial(FLyVerifier, 0.1, 1)),
    _joint("block", "block", BlockVerifier),
    _joint("block-static-0.4", "block", lambda: BlockVerifier(StaticEnsembleVerifier(0.4))),
    _joint("block-token_v3", "block", lambda: BlockVerifier(SpecCascadeVerifier("token_v3", 0.5))),
    _joint("phase-top-k", "phase", lambda: PhaseVerifier(TopKRelaxedVerifier(5, 0.6), begin=BEGIN, end=END)),
    _joint(
        "phase-fly-static",
        "phase",
        lambda: PhaseVerifier(FLyVerifier(), StaticEnsembleVerifier(0.3), begin=BEGIN, end=END),
    ),
    _joint("block-token", "block", lambda: BlockVerifier(DiversedVerifier(random_head("mlp", token_features=True)))),
]
DISTRIBUTION_CASES = [case for case in VERIFIER_CASES if case.emitted is not None]

# random: full supports. truncated: each distribution keeps its own three best tokens. disjoint: no token in common.
# ties: scores on an integer grid. denormal: probabilities down to 1e-42. equal: p = q.
KINDS = ("random", "truncated", "disjoint", "ties", "denormal", "equal")


def make_block(*kinds: str, sampled: bool = True, rows: int = 2, seed: int = 0) -> tuple[DraftOutput, TargetOutput]:
    """Return random distributions with hidden states and raw logits, `rows` rows of each kind (default: all).

    Draft tokens are argmax q.
    """
    generator = torch.Generator().manual_seed(seed)
    scores = [_scores(kind, rows, generator) for kind in kinds or KINDS]
    raw_q, raw_p, q, p = (torch.cat(parts) for parts in zip(*scores))
    draft_hidden = torch.randn(len(q), GAMMA, DRAFT_WIDTH, generator=generator)
    target_hidden = torch.randn(len(p), GAMMA + 1, TARGET_WIDTH, generator=generator)
    draft = DraftOutput(q, draft_hidden, raw_q, tokens=q.argmax(-1), sampled=sampled)
    return draft, TargetOutput(p, target_hidden, raw_p)


def _scores(kind: str, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Return raw logits of draft and target, then both after temperature and truncation."""
    normal = partial(torch.randn, generator=generator)
    raw_q, raw_p = 2.0 * normal(rows, GAMMA, VOCAB), 2.0 * normal(rows, GAMMA + 1, VOCAB)
    if kind == "equal":
        raw_p[:, :-1] = raw_q
    if kind == "ties":
        raw_q, raw_p = raw_q.round(), raw_p.round()
    if kind == "denormal":
        raw_q, raw_p = (raw - 76.0 * (normal(raw.shape) > 0.3) for raw in (raw_q, raw_p))
    q, p = raw_q / TEMPERATURE, raw_p / TEMPERATURE
    if kind == "truncated":
        q, p = (scores.where(scores >= scores.topk(3).values[..., -1:], -torch.inf) for scores in (q, p))
    if kind == "disjoint":
        q[..., ::2], p[..., 1::2] = -torch.inf, -torch.inf
    return raw_q, raw_p, q, p


@dataclass(frozen=True)
class Enumeration:
    """A verifier's output for every possible draft token, in float64.

    Attributes:
        accept, emitted, weight, bias: by token, `[B, G, V]`; `weight` and `bias` may be None.
        tv: `[B, G]` or None.
    """

    accept: torch.Tensor
    replacement: torch.Tensor  # [B, G, V, V]: the normalised distribution that replaces token x, for every x
    emitted: torch.Tensor
    weight: torch.Tensor | None
    tv: torch.Tensor | None
    bias: torch.Tensor | None


def enumerate_emitted(verifier: Verifier, draft: DraftOutput, target: TargetOutput) -> Enumeration:
    """Verify every token at every position and sum the emitted distribution exactly, without sampling."""
    batch, gamma, vocab = draft.scores.shape
    tokens = torch.arange(vocab).repeat(batch)[:, None].expand(-1, gamma)
    draft, target = replace(_repeated(draft, vocab), tokens=tokens), _repeated(target, vocab)
    verdict = verifier(torch.zeros(batch * vocab, 1, dtype=torch.long), draft, target)

    def per_token(values: torch.Tensor) -> torch.Tensor:
        return values.double().unflatten(0, (batch, vocab)).movedim(1, 2)

    accept = per_token(verdict.accept_prob)
    unnormalised = [verdict.replacement(torch.full((batch * vocab,), position)) for position in range(gamma)]
    replacement = per_token(torch.stack(unnormalised, dim=1))
    replacement = replacement / replacement.sum(-1, keepdim=True)
    q = per_token(draft.scores)[..., 0, :].softmax(-1)
    emitted = q * accept + torch.einsum("bgx,bgxv->bgv", q * (1.0 - accept), replacement)
    trace = verdict.trace
    weight, tv, bias = (None if x is None else per_token(x) for x in (trace.weight, trace.tv, trace.bias))
    return Enumeration(accept, replacement, emitted, weight, None if tv is None else tv[..., 0], bias)


def weights_of(verifier: Verifier, draft: DraftOutput, target: TargetOutput) -> torch.Tensor | None:
    """Return the weight of every token, float64 `[B, G, V]`, also for greedy drafts; None without weights."""
    return enumerate_emitted(verifier, replace(draft, sampled=True), target).weight


def _repeated(block, count: int):
    tensors = {item.name: getattr(block, item.name) for item in fields(block) if item.init}
    return replace(
        block, **{name: value.repeat_interleave(count, 0) for name, value in tensors.items() if torch.is_tensor(value)}
    )
