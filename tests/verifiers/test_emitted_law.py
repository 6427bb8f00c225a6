"""What every rule emits, by enumeration of all drafted tokens: no Monte Carlo."""

import pytest
import torch

from hf_diversed.verifiers import VERIFIERS
from tests.verifier_cases import (
    GAMMA,
    LAW_CASES,
    VERIFIER_CASES,
    Laws,
    VerifierCase,
    enumerate_law,
    make_block,
    mixture_law,
    total_variation,
)


TOLERANCE = 1e-6  # the rules compute in float32
MIXING = [case for case in VERIFIER_CASES if case.law is mixture_law]
LENIENT = [case for case in VERIFIER_CASES if case.rule == "lenience"]

every_case = pytest.mark.parametrize("case", LAW_CASES, ids=lambda case: case.id)
mixing_cases = pytest.mark.parametrize("case", MIXING, ids=lambda case: case.id)
lenient_cases = pytest.mark.parametrize("case", LENIENT, ids=lambda case: case.id)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0.0, atol=TOLERANCE)


def test_every_registered_rule_has_a_case():
    """Catches a rule that is registered without a row in the table, and a row that builds some other rule."""
    assert {case.rule for case in VERIFIER_CASES} == set(VERIFIERS)
    for case in VERIFIER_CASES:
        assert type(case.make()) is VERIFIERS[case.rule], case.id


@every_case
def test_sampling_emits_the_law(case: VerifierCase):
    """Catches any error in acceptance, residual or fallback, raw and processed laws mixed up, a position off by one, a
    weight that looks at the drafted token: all of them bend the emitted law away from v."""
    draft, target = make_block()
    found = enumerate_law(case.make(), draft, target)
    close(found.emitted, case.law(Laws.of(draft, target, found.weight)))


@pytest.mark.parametrize("case", [case for case in LAW_CASES if case.maximal], ids=lambda case: case.id)
def test_accepts_as_much_as_the_law_allows(case: VerifierCase):
    """Catches needless rejections that a residual overlapping q makes up for: the right law, but slow."""
    draft, target = make_block()
    found = enumerate_law(case.make(), draft, target)
    q = Laws.of(draft, target).q
    close((q * found.accept).sum(-1), 1.0 - total_variation(q, found.emitted))


@mixing_cases
def test_mixing_acceptance_and_bias(case: VerifierCase):
    """Catches a weight on the draft instead of the target, and statistics that report another TV than TV(p, q)."""
    draft, target = make_block()
    found = enumerate_law(case.make(), draft, target)
    laws = Laws.of(draft, target)
    tv = total_variation(laws.p, laws.q)
    close((laws.q * found.accept).sum(-1), 1.0 - found.weight * tv)
    close(total_variation(found.emitted, laws.p), (1.0 - found.weight) * tv)
    if found.tv is not None:
        close(found.tv, tv)


@pytest.mark.parametrize("case", [case for case in MIXING if "max-bias" in case.id], ids=lambda case: case.id)
def test_max_bias_bounds_the_emitted_law(case: VerifierCase):
    """Catches a cap applied before the quality dial or to the wrong TV: `max_bias` would be a wish, not a bound."""
    draft, target = make_block()
    verifier = case.make()
    emitted = enumerate_law(verifier, draft, target).emitted
    assert total_variation(emitted, Laws.of(draft, target).p).max() <= verifier.max_bias[0] + TOLERANCE


@lenient_cases
def test_lenience_bounds_overshoot_on_the_front(case: VerifierCase):
    """Catches lenience applied to the residual too, or as 1 - lenience: v <= p / l and the front would be lost."""
    draft, target = make_block()
    verifier = case.make()
    found = enumerate_law(verifier, draft, target)
    laws = Laws.of(draft, target)
    assert (found.emitted <= laws.p / verifier.lenience + TOLERANCE).all()
    rejected = 1.0 - (laws.q * found.accept).sum(-1)
    close(rejected + total_variation(found.emitted, laws.p), total_variation(laws.p, laws.q))


@every_case
def test_greedy_emits_the_best_token(case: VerifierCase):
    """Catches a greedy rule that samples, or that accepts and replaces by different criteria."""
    draft, target = make_block(sampled=False, rows=8)
    verdict = case.make()(draft.tokens, draft, target)
    expected = case.greedy(Laws.of(draft, target, verdict.trace.weight))
    assert torch.equal(verdict.accept_prob, (expected == draft.tokens).float())
    for position in range(GAMMA):
        kept = verdict.accept_prob[:, position] == 1.0
        replacing = verdict.replacement(torch.full((len(kept),), position)).argmax(-1)
        assert torch.equal(torch.where(kept, draft.tokens[:, position], replacing), expected[:, position])


@pytest.mark.parametrize("sampled", [True, False])
@every_case
def test_rows_reject_at_their_own_positions(case: VerifierCase, sampled: bool):
    """Catches a replacement law read at one row's position for the whole batch."""
    draft, target = make_block("random", sampled=sampled, rows=GAMMA)
    verdict = case.make()(draft.tokens, draft, target)
    own = torch.arange(GAMMA).flip(0)
    mixed = verdict.replacement(own)
    for row, position in enumerate(own):
        assert torch.equal(mixed[row], verdict.replacement(position.expand(GAMMA))[row])
