"""Weights per token: emitted distribution, bounds, whole processes, strictness, and diagnostics."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.sampling import total_variation
from hf_diversed.verifiers import (
    BlockVerifier,
    DiversedVerifier,
    FuzzyVerifier,
    LenientVerifier,
    PhaseVerifier,
    StaticEnsembleVerifier,
    build_verifier,
)
from hf_diversed.verifiers.diversed import shift_lenience
from hf_diversed.verifiers.mixture import MixtureVerifier, Weights
from tests.verifier_cases import (
    DRAFT_WIDTH,
    TARGET_WIDTH,
    Probs,
    enumerate_emitted,
    make_block,
    token_probs,
)
from tests.verifiers.process import Tables, distance, process_probs, product_probs
from tests.verifiers.test_degenerate import ROUNDING, ROWS, VOCAB, distribution, token_head


SEEDS = range(2)


class Given(MixtureVerifier):
    """Weights from a table `[B, V]`, as any head could return. Rows of a block repeat each table row consecutively."""

    def __init__(self, table: torch.Tensor, **limits):
        super().__init__(**limits)
        self.table = table

    def weights(self, draft, target, row_values) -> Weights:
        table = self.table.repeat_interleave(len(draft.tokens) // len(self.table), 0)[:, None]
        return Weights(table.gather(-1, draft.tokens[..., None])[..., 0], per_token=lambda p, q: table)


one_hot = st.integers(0, VOCAB - 1).map(lambda x: [0.0 if x == y else -torch.inf for y in range(VOCAB)])
weight = st.sampled_from([0.0, 1e-30, 1e-6, 0.5, 1.0 - 2**-24, 1.0]) | st.floats(0.0, 1.0, width=32)
probs = partial(st.lists, min_size=ROWS, max_size=ROWS)
tables = probs(st.lists(weight, min_size=VOCAB, max_size=VOCAB))
bound = st.sampled_from([0.0, 1.0]) | st.floats(0.0, 1.0, width=32)


@settings(max_examples=60, deadline=None, derandomize=True)  # 720 triples (p, q, w)
@given(probs(distribution), probs(distribution | one_hot), tables, bound)
def test_no_triple_breaks(p, q, w, limit):
    """Catches errors at zeros, ties, denormals and one-hot q.

    Errors: NaN, an emitted distribution that is invalid or differs from the reported one, rejection or bias that
    contradict the theory, and bounds that do not hold.
    """
    scores, table = torch.tensor(p)[:, None].repeat(1, 2, 1), torch.tensor(w)
    draft = DraftOutput(torch.tensor(q)[:, None], tokens=torch.tensor(q)[:, None].argmax(-1), sampled=True)
    target = TargetOutput(scores)
    probs = Probs(
        *(2 * [distribution.double() for distribution in (target.probs()[:, :-1], draft.probs())]),
        table.double()[:, None],
    )

    def check(verifier: Given) -> tuple[torch.Tensor, torch.Tensor]:
        found = enumerate_emitted(verifier, draft, target)
        assert ((found.accept >= 0.0) & (found.accept <= 1.0)).all()
        close(verifier(draft.tokens, draft, target).trace.emitted_probs(), found.emitted)
        return found.emitted, (probs.q * (1.0 - found.accept)).sum(-1)

    emitted, rejected = check(Given(table))
    close(emitted, token_probs(probs))
    close(total_variation(probs.q, emitted), rejected)
    close(total_variation(emitted, probs.p) + rejected, total_variation(probs.p, probs.q))
    assert (total_variation(check(Given(table, max_bias=limit))[0], probs.p) <= limit + ROUNDING).all()
    for ratio in (1.0 + limit, 1.0 + 10.0 * limit):
        assert (check(Given(table, max_ratio=ratio))[0] <= ratio * probs.p + ratio * ROUNDING).all()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0.0, atol=ROUNDING)


def test_bounds_raise_weights_no_further_than_needed():
    """Catches bounds that change weights although they are already met."""
    draft, target = make_block()
    free = enumerate_emitted(DiversedVerifier(token_head()), draft, target).weight
    idle = {"max_bias": 1.0, "max_ratio": float("inf")}
    for name, value in idle.items():
        assert torch.equal(
            enumerate_emitted(DiversedVerifier(token_head(), **{name: value}), draft, target).weight, free
        )


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.05])
def test_lenience_is_a_weight_per_token(lenience: float):
    """Catches (1 - p / (l q)) without its denominator: the bound would be stricter than p / l, or not hold."""
    draft, target = make_block()
    exact = enumerate_emitted(LenientVerifier(lenience), draft, target)
    for verifier in (
        StaticEnsembleVerifier(0.0, max_ratio=1.0 / lenience),
        DiversedVerifier(token_head(), strictness=0.0, max_ratio=1.0 / lenience),
    ):
        found = enumerate_emitted(verifier, draft, target)
        close(draft.probs() * found.accept, draft.probs() * exact.accept)
        close(found.emitted, exact.emitted)


WEIGHABLE = {
    "static": lambda: StaticEnsembleVerifier(0.3),
    "token": lambda: DiversedVerifier(token_head()),
    "bound": lambda: DiversedVerifier(token_head(), strictness=0.1, max_bias=0.3),
    "fuzzy": lambda: FuzzyVerifier(1.0, "reverse_kl"),
    "block": lambda: BlockVerifier(StaticEnsembleVerifier(0.4)),
    "phase": lambda: PhaseVerifier(StaticEnsembleVerifier(0.2), DiversedVerifier(token_head()), begin=1, end=2),
}


@pytest.mark.parametrize("name", WEIGHABLE)
@torch.no_grad()
def test_importance_weights_give_the_target(name: str):
    """Catches a recorded log-probability of another position, token or distribution.

    Examples: q, p at residual tokens, v at bonus tokens. Weighted, every sequence has the target's probability, so
    averages are unbiased.
    """
    verifier = WEIGHABLE[name]()
    for seed in SEEDS:
        tables = Tables(seed)
        exact = product_probs(Tables.p, tables, 3)
        weighted, relaxed = (process_probs(verifier, tables, 2, 3, weighted=flag) for flag in (True, False))
        assert distance(weighted, exact) < ROUNDING
        assert distance(relaxed, exact) > 0.01


@pytest.mark.parametrize("spec", ["lenience:0.3", "lossy:0.5", "typical:0.3:0.6", "top_k_relaxed:2:0.3", "fly:0.1:1"])
def test_importance_weights_are_refused_without_a_distribution(spec: str):
    """Catches tokens without a log-probability that count as weight 1."""
    assert not build_verifier(spec).has_emitted_probs
    with pytest.raises(ValueError, match="importance weights need a verifier with an emitted distribution"):
        process_probs(build_verifier(spec), Tables(0), 2, 3, weighted=True)


# Strictness


def lenient_head(lenience: float = 0.05, slope: float = 3.0, head_type: str = "linear") -> DiversedHead:
    """Return a head as at the start of training; its logits span 30."""
    settings = {"head_type": head_type, "features": "distribution", "token_features": True}
    head = DiversedHead(DiversedHeadConfig(TARGET_WIDTH, DRAFT_WIDTH, **settings)).eval()
    head.start_lenient(lenience, slope)
    return head


@pytest.mark.parametrize("head_type", ["linear", "mlp"])
def test_each_tenth_of_strictness_changes_acceptance(head_type: str):
    """Catches strictness in units of the logit: with large logits only its ends would have an effect."""
    draft, target = make_block("random", rows=100)
    q, strict = draft.probs(), 1.0 - total_variation(target.probs()[:, :-1], draft.probs()).mean()
    found = []
    for tenth in range(11):
        verifier = DiversedVerifier(lenient_head(head_type=head_type), strictness=tenth / 10)
        found.append((q * enumerate_emitted(verifier, draft, target).accept).sum(-1).mean().item())
    assert found[0] == pytest.approx(1.0, abs=1e-8)
    assert found[-1] == pytest.approx(strict.item(), abs=ROUNDING)
    steps = [before - after for before, after in itertools.pairwise(found)]
    assert min(steps) > 0.02 * (1.0 - found[-1])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.floats(-40.0, 40.0, width=32), st.floats(1.0, 10.0, width=32), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_strictness_is_exact_and_monotone(logit: float, slope: float, one: float, other: float):
    """Catches rounding: strictness 0 must accept all, 0.5 equal the head and 1 be lossless, bit by bit."""
    logit, slope = torch.tensor(logit), torch.tensor(slope)
    strictness = torch.tensor([0.0, 0.5, 1.0, *sorted((one, other))])
    found = torch.sigmoid(shift_lenience(logit, strictness, slope))
    assert torch.equal(found[:3], torch.stack([torch.tensor(0.0), torch.sigmoid(logit), torch.tensor(1.0)]))
    assert found[3] <= found[4] + 1e-6


def test_strictness_multiplies_the_lenience():
    """Catches the slope of standardised inputs used for that of log p/q: strictness 0.75 is 3 times the lenience."""
    head = lenient_head(0.1, slope=2.0)
    head.standardize(features=torch.randn(50, 8), token=3.0 * torch.randn(50, 5) - 2.0)
    head.start_lenient(0.1, slope=2.0)
    torch.testing.assert_close(head.ratio_slope(), torch.tensor(2.0))
    ratio = torch.tensor([[0.3, 0.1]]).log()[..., None]
    inputs = {"features": torch.randn(1, 2, 8), "token": torch.cat([ratio, torch.randn(1, 2, 4)], dim=-1)}
    shifted = shift_lenience(head(**inputs), torch.tensor([[0.75, 0.5]]), head.ratio_slope())
    torch.testing.assert_close(shifted, torch.zeros(1, 2), rtol=0.0, atol=1e-5)


# Diagnostics


def test_phases_report_the_bias_of_both_verifiers():
    """Catches a bias that is lost or invented where another kind of verifier decides."""
    draft, target = make_block("random")
    tokens = torch.zeros_like(draft.tokens)  # no marker tokens: the first row is inside the phase, the second outside
    draft = replace(draft, tokens=tokens)
    verifier, tv = DiversedVerifier(token_head()), total_variation(target.probs()[:, :-1], draft.probs())
    own = verifier(tokens, draft, target).trace
    for outside, expected in ((StaticEnsembleVerifier(0.3), 0.7 * tv[1]), (LenientVerifier(0.5), tv[1] * torch.nan)):
        trace = PhaseVerifier(verifier, outside, begin=1, end=2)(torch.tensor([[1], [2]]), draft, target).trace
        assert torch.equal(trace.bias[0], own.bias[0])
        torch.testing.assert_close(trace.bias[1], expected, equal_nan=True)
        assert torch.equal(trace.emitted_probs()[0], own.emitted_probs()[0])


def test_phases_report_the_inputs_of_either_verifier():
    """Catches inputs that are lost if the verifier with a head decides outside the phase."""
    draft, target = make_block("random")
    head, other = DiversedVerifier(token_head()), StaticEnsembleVerifier(0.3)
    head.keeps_inputs = True
    for parts in ((head, other), (other, head)):
        trace = PhaseVerifier(*parts, begin=1, end=2)(torch.tensor([[1], [2]]), draft, target).trace
        assert trace.inputs is not None
