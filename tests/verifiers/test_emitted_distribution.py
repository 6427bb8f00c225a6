"""The emitted distribution of every verifier, by enumeration of all draft tokens instead of sampling."""

from dataclasses import replace

import pytest
import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers import VERIFIERS
from tests.verifier_cases import (
    DISTRIBUTION_CASES,
    GAMMA,
    VERIFIER_CASES,
    Probs,
    VerifierCase,
    enumerate_emitted,
    make_block,
    mixture_probs,
    token_probs,
    total_variation,
    weights_of,
)


TOLERANCE = 1e-6  # the verifiers compute in float32
MIXING = [case for case in VERIFIER_CASES if case.emitted is mixture_probs]
TOKENWISE = [case for case in VERIFIER_CASES if case.emitted is token_probs]
every_case = pytest.mark.parametrize("case", DISTRIBUTION_CASES, ids=lambda case: case.id)
mixing_cases = pytest.mark.parametrize("case", MIXING, ids=lambda case: case.id)
token_cases = pytest.mark.parametrize("case", TOKENWISE, ids=lambda case: case.id)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0.0, atol=TOLERANCE)


def test_every_registered_verifier_has_a_case():
    """Catches a verifier that is registered without a row in the table, and a row that builds another verifier."""
    assert {case.rule for case in VERIFIER_CASES} == set(VERIFIERS)
    for case in VERIFIER_CASES:
        assert type(case.make()) is VERIFIERS[case.rule], case.id


@every_case
def test_sampling_emits_the_distribution(case: VerifierCase):
    """Catches any error in acceptance, residual or fallback: each changes the emitted distribution."""
    draft, target = make_block()
    found = enumerate_emitted(case.make(), draft, target)
    close(found.emitted, case.emitted(Probs.of(draft, target, found.weight)))


@pytest.mark.parametrize("case", [case for case in DISTRIBUTION_CASES if case.maximal], ids=lambda case: case.id)
def test_accepts_as_much_as_the_distribution_allows(case: VerifierCase):
    """Catches needless rejections that a residual overlapping q compensates: correct distribution, but slow."""
    draft, target = make_block()
    found = enumerate_emitted(case.make(), draft, target)
    q = Probs.of(draft, target).q
    close((q * found.accept).sum(-1), 1.0 - total_variation(q, found.emitted))


@mixing_cases
def test_mixing_reports_weight_and_tv(case: VerifierCase):
    """Catches a weight that depends on the token, and statistics that report another TV than TV(p, q)."""
    draft, target = make_block()
    found = enumerate_emitted(case.make(), draft, target)
    probs = Probs.of(draft, target)
    close(found.weight, found.weight[..., :1].expand_as(found.weight))
    assert found.bias is None
    if found.tv is not None:
        close(found.tv, total_variation(probs.p, probs.q))


@token_cases
def test_weights_per_token_report_distribution_and_bias(case: VerifierCase):
    """Catches a report of another distribution than the emitted one, or of another bias."""
    draft, target = make_block()
    verifier = case.make()
    found = enumerate_emitted(verifier, draft, target)
    close(verifier(draft.tokens, draft, target).trace.emitted_probs(), found.emitted)
    probs = Probs.of(draft, target)
    close((probs.q * found.bias).sum(-1), total_variation(found.emitted, probs.p))


@token_cases
def test_greedy_bias_is_that_of_the_distribution(case: VerifierCase):
    """Catches the draft token's estimate in greedy decoding, where the draft token is not sampled from q."""
    draft, target = make_block(sampled=False)
    verifier = case.make()
    found = enumerate_emitted(verifier, replace(draft, sampled=True), target)
    bias = verifier(draft.tokens, draft, target).trace.bias
    close(bias, total_variation(found.emitted, Probs.of(draft, target).p))


BOUNDED = [
    case for case in MIXING + TOKENWISE if any(name in case.id for name in ("max-bias", "max-ratio", "all-bounds"))
]


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: case.id)
def test_bounds_hold_for_the_emitted_distribution(case: VerifierCase):
    """Catches bounds applied to the draft token's weight, to another distance or before the strictness."""
    draft, target = make_block()
    verifier, p = case.make(), Probs.of(draft, target).p
    emitted = enumerate_emitted(verifier, draft, target).emitted
    if "max-ratio" not in case.id:
        assert total_variation(emitted, p).max() <= verifier.max_bias[0] + TOLERANCE
    if "max-bias" not in case.id and case in TOKENWISE:
        assert (emitted <= verifier.max_ratio[0] * p + TOLERANCE).all()


@every_case
def test_greedy_emits_the_best_token(case: VerifierCase):
    """Catches a greedy verifier that samples, or that accepts and replaces by different criteria."""
    draft, target = make_block(sampled=False, rows=8)
    verifier = case.make()
    verdict = verifier(draft.tokens, draft, target)
    expected = case.greedy(Probs.of(draft, target, weights_of(verifier, draft, target)))
    assert torch.equal(verdict.accept_prob, (expected == draft.tokens).float())
    for position in range(GAMMA):
        kept = verdict.accept_prob[:, position] == 1.0
        replacing = verdict.replacement(torch.full((len(kept),), position)).argmax(-1)
        assert torch.equal(torch.where(kept, draft.tokens[:, position], replacing), expected[:, position])


@pytest.mark.parametrize("sampled", [True, False])
@every_case
def test_rows_reject_at_their_own_positions(case: VerifierCase, sampled: bool):
    """Catches a replacement distribution of one row's position used for the whole batch."""
    draft, target = make_block("random", sampled=sampled, rows=GAMMA)
    verdict = case.make()(draft.tokens, draft, target)
    own = torch.arange(GAMMA).flip(0)
    mixed = verdict.replacement(own)
    for row, position in enumerate(own):
        assert torch.equal(mixed[row], verdict.replacement(position.expand(GAMMA))[row])


@pytest.mark.parametrize("sampled", [True, False])
@every_case
def test_a_block_of_one_draft_token(case: VerifierCase, sampled: bool):
    """Catches an index of a position that only longer blocks have."""
    draft, target = make_block(sampled=sampled)
    first = DraftOutput(
        draft.scores[:, :1], draft.hidden[:, :1], draft.raw_logits[:, :1], tokens=draft.tokens[:, :1], sampled=sampled
    )
    whole = case.make()(draft.tokens, draft, target)
    alone = case.make()(
        draft.tokens, first, TargetOutput(target.scores[:, :2], target.hidden[:, :2], target.raw_logits[:, :2])
    )
    close(alone.accept_prob, whole.accept_prob[:, :1])
    positions = torch.zeros(len(draft.tokens), dtype=torch.long)
    close(alone.replacement(positions), whole.replacement(positions))
