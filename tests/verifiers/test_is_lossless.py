"""`Verifier.is_lossless` and `stats.is_lossless`, against the distributions that verifiers emit."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

import hf_diversed
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.verifiers import (
    BlockVerifier,
    DiversedVerifier,
    FLyVerifier,
    LosslessVerifier,
    PhaseVerifier,
    StaticEnsembleVerifier,
    Verifier,
    build_verifier,
)
from tests import tiny
from tests.verifier_cases import (
    BEGIN,
    DISTRIBUTION_CASES,
    END,
    Probs,
    VerifierCase,
    enumerate_emitted,
    make_block,
    random_head,
    total_variation,
)
from tests.verifiers.process import Tables, distance, process_probs, product_probs


TOLERANCE = 1e-6
every_case = pytest.mark.parametrize("case", DISTRIBUTION_CASES, ids=lambda case: case.id)


@every_case
def test_sampling(case: VerifierCase):
    """Catches a relaxed verifier reported as lossless, and a setting at its lossless end that is not recognised."""
    draft, target = make_block(rows=8)
    verifier = case.make()
    bias = total_variation(enumerate_emitted(verifier, draft, target).emitted, Probs.of(draft, target).p).max()
    assert verifier.is_lossless(sampled=True) == (bias < TOLERANCE)


@every_case
def test_greedy(case: VerifierCase):
    """Catches the same in greedy decoding, where some verifiers are lossless that are not when sampling."""
    draft, target = make_block(sampled=False, rows=100)
    verifier = case.make()
    verdict = verifier(draft.tokens, draft, target)
    best = target.scores[:, :-1].argmax(-1)
    same = torch.equal(verdict.accept_prob == 1.0, best == draft.tokens)
    rejected = (best != draft.tokens).long().argmax(-1)
    same &= torch.equal(verdict.replacement(rejected).argmax(-1), best.gather(1, rejected[:, None])[:, 0])
    assert verifier.is_lossless(sampled=False) == same


def _head(**settings) -> DiversedVerifier:
    return DiversedVerifier(random_head(features="distribution", token_features=True), **settings)


LOSSLESS_ENDS: dict[str, Callable[[], Verifier]] = {
    **{spec: partial(build_verifier, spec) for spec in (
        *("lossless", "static:1", "static:0.2:0", "static:0.2:1:1", "lenience:1", "lossy:0"),
        *("lossy:0:1", "spec_cascade:token_v1:-1", "spec_cascade:token_v2:-1", "fuzzy:0", "fuzzy:9:kl:0"),
        *("contrastive:0:0", "mars:1", "fly:inf", "block", "block:static:1"),
    )},
    "strictness of every row": lambda: _head(strictness=1.0),
    "bound of every row": lambda: _head(strictness=0.1, max_ratio=[1.0]),
    "phase": lambda: PhaseVerifier(StaticEnsembleVerifier(1.0), begin=1, end=2),
    "block of a bound": lambda: BlockVerifier(StaticEnsembleVerifier(0.2, max_bias=0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSLESS_ENDS)
@torch.no_grad()
def test_lossless_ends(name: str):
    """Catches a verifier that is reported as lossless, but whose whole sequences do not follow the target."""
    verifier = LOSSLESS_ENDS[name]()
    assert verifier.is_lossless(sampled=True)
    assert verifier.is_lossless(sampled=False)
    for seed in range(3):
        found = process_probs(verifier, Tables(seed, 2.0), 2, 3)
        assert distance(found, product_probs(Tables.p, Tables(seed, 2.0), 3)) < TOLERANCE


def test_settings_that_differ_per_row_or_part():
    """Catches one lossless row or part that stands for all."""
    assert not _head(strictness=[1.0, 0.5]).is_lossless(True)
    assert not StaticEnsembleVerifier(0.2, max_bias=[0.0, 0.1]).is_lossless(True)
    assert not PhaseVerifier(StaticEnsembleVerifier(0.5), begin=BEGIN, end=END).is_lossless(True)
    assert not PhaseVerifier(LosslessVerifier(), FLyVerifier(), begin=BEGIN, end=END).is_lossless(True)


class Permissive(LosslessVerifier):
    """Inherits from a lossless verifier, and accepts everything."""

    def __call__(self, input_ids, draft, target):
        return replace(super().__call__(input_ids, draft, target), accept_prob=torch.ones_like(draft.scores[..., 0]))


class Declared(Permissive):
    def is_lossless(self, sampled):
        return sampled


def test_subclasses_that_decide_otherwise_are_unknown():
    """Catches a claim that is inherited by a verifier which emits other tokens."""
    assert not Permissive().is_lossless(True)
    assert Declared().is_lossless(True)
    assert not Declared().is_lossless(False)
    assert not Verifier().is_lossless(False)


def test_stats(pair):
    """Catches statistics of the verifier's class instead of its settings and of the call."""
    for verifier, sampled, greedy in (
        ("static:0.5", False, False),
        ("static:1", True, True),
        ("typical", False, True),
    ):
        assert tiny.generate(pair, verifier=verifier).stats.is_lossless == sampled
        assert tiny.generate(pair, verifier=verifier, do_sample=False).stats.is_lossless == greedy


def test_stats_of_several_calls(pair):
    """Catches a sum that is lossless although one of its calls is not, and a claim without any round."""
    assert not SpeculativeStats().is_lossless
    with hf_diversed.record_stats() as both:
        with hf_diversed.record_stats() as first:
            tiny.generate(pair, verifier="lossless")
        assert first.is_lossless
        tiny.generate(pair, verifier="static:0.9")
    assert not both.is_lossless
