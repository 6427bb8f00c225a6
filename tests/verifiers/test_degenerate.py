"""Edge cases: equal distributions, zero and denormal probabilities, ties, both ends of every setting."""

import itertools
from functools import partial

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.verifiers import (
    DiversedVerifier,
    LosslessVerifier,
    StaticEnsembleVerifier,
    Verifier,
    build_verifier,
)
from tests.verifier_cases import (
    DISTRIBUTION_CASES,
    DRAFT_WIDTH,
    GAMMA,
    TARGET_WIDTH,
    VERIFIER_CASES,
    Probs,
    VerifierCase,
    enumerate_emitted,
    make_block,
    random_head,
)


ROUNDING = 1e-6
token_head = partial(random_head, features="distribution", token_features=True)


def of_head(per_token: bool, is_nan: bool, **setting) -> DiversedVerifier:
    """Return a verifier with a head whose output may be NaN, as finite weights of 1e38 cause."""
    head = token_head() if per_token else random_head()
    if is_nan:
        head.out.weight.data.fill_(torch.nan)
    return DiversedVerifier(head, **setting)


SPECS = ("static:1", "lenience:1", "spec_cascade:diff:-1", "lossy:0", "lossy:0:1", "fuzzy:0", "contrastive:0:0")
LOSSLESS = {spec: partial(build_verifier, spec) for spec in SPECS} | {
    f"{'token ' if per_token else ''}{name}{', nan' if is_nan else ''}": partial(
        of_head, per_token, is_nan, **{name: value}
    )
    for name, value in (("strictness", 1.0), ("max_bias", 0.0), ("max_ratio", 1.0))
    for per_token, is_nan in itertools.product([False, True], repeat=2)
}
PERMISSIVE = {
    "static": lambda: StaticEnsembleVerifier(0.0),
    "strictness": lambda: DiversedVerifier(random_head(), strictness=0.0),
    "token strictness": lambda: DiversedVerifier(token_head(), strictness=0.0),
}
AGREEING = [case for case in DISTRIBUTION_CASES if case.agreeing]


def greedy_tokens(verifier: Verifier, draft: DraftOutput, target: TargetOutput) -> torch.Tensor:
    """Return what greedy decoding emits at every position, long `[B, G]`: the draft token or its replacement."""
    verdict = verifier(draft.tokens, draft, target)
    rows, gamma = draft.tokens.shape
    replacing = [verdict.replacement(torch.full((rows,), position)).argmax(-1) for position in range(gamma)]
    return torch.where(verdict.accept_prob == 1.0, draft.tokens, torch.stack(replacing, dim=1))


@pytest.mark.parametrize("case", AGREEING, ids=lambda case: case.id)
def test_equal_distributions_accept_everything(case: VerifierCase):
    """Catches a residual of rounding noise, or 0 / 0, where p = q: all tokens are accepted, and the fallback is p."""
    draft, target = make_block("equal")
    found = enumerate_emitted(case.make(), draft, target)
    assert found.accept.min() >= 1.0 - ROUNDING
    torch.testing.assert_close(found.replacement, Probs.of(draft, target).p[:, :, None].expand_as(found.replacement))


@pytest.mark.parametrize("case", VERIFIER_CASES, ids=lambda case: case.id)
def test_equal_distributions_accept_everything_greedily(case: VerifierCase):
    """Catches a greedy verifier that rejects a draft token that is also the target's."""
    draft, target = make_block("equal", sampled=False, rows=8)
    assert (case.make()(draft.tokens, draft, target).accept_prob == 1.0).all()


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("name", PERMISSIVE)
def test_weight_zero_accepts_exactly_everything(name: str, sampled: bool):
    """Catches 0 * inf: a denormal or zero q(x) overflows p / q, and NaN rejects a token that w = 0 must accept."""
    draft, target = make_block(sampled=sampled)
    verifier = PERMISSIVE[name]()
    assert (verifier(draft.tokens, draft, target).accept_prob == 1.0).all()
    assert not sampled or (enumerate_emitted(verifier, draft, target).accept == 1.0).all()


@pytest.mark.parametrize("name", LOSSLESS)
def test_strict_end_is_lossless(name: str):
    """Catches a setting that is not lossless at its strict end: (1 - w) q remains, a gate opens, or ties differ."""
    draft, target = make_block()
    exact, found = (enumerate_emitted(verifier, draft, target) for verifier in (LosslessVerifier(), LOSSLESS[name]()))
    torch.testing.assert_close(found.accept, exact.accept, rtol=0.0, atol=ROUNDING)
    torch.testing.assert_close(found.emitted, exact.emitted, rtol=0.0, atol=ROUNDING)
    draft, target = make_block(sampled=False, rows=8)
    assert torch.equal(greedy_tokens(LOSSLESS[name](), draft, target), target.scores[:, :-1].argmax(-1))


@pytest.mark.parametrize("name", LOSSLESS)
def test_strict_end_follows_scores_that_softmax_cannot_tell_apart(name: str):
    """Catches greedy decoding by probabilities: scores 0 and 1e-9 have equal float32 probabilities, but one argmax."""
    p, q = torch.tensor([0.0, 1e-9, -3.0]), torch.tensor([2.0, 1.0, 0.0])
    p, q = p.expand(1, GAMMA + 1, -1), q.expand(1, GAMMA, -1)
    assert torch.softmax(p, -1)[0, 0, 0] == torch.softmax(p, -1)[0, 0, 1]
    hidden = torch.ones(1, GAMMA + 1, TARGET_WIDTH), torch.ones(1, GAMMA, DRAFT_WIDTH)
    draft = DraftOutput(q, hidden[1], raw_logits=q, tokens=q.argmax(-1), sampled=False)
    assert (greedy_tokens(LOSSLESS[name](), draft, TargetOutput(p, hidden[0], raw_logits=p)) == 1).all()


@pytest.mark.parametrize("name", PERMISSIVE)
def test_permissive_end_follows_the_draft_where_softmax_cannot(name: str):
    """Catches w = 0 rejecting the draft's own argmax because softmax rounds its score to a neighbour's."""
    q = torch.tensor([0.0, 1e-9, -3.0]).expand(1, GAMMA, -1)
    p = torch.tensor([5.0, 0.0, 0.0]).expand(1, GAMMA + 1, -1)
    hidden = torch.ones(1, GAMMA + 1, TARGET_WIDTH), torch.ones(1, GAMMA, DRAFT_WIDTH)
    draft = DraftOutput(q, hidden[1], tokens=q.argmax(-1), sampled=False)
    assert (greedy_tokens(PERMISSIVE[name](), draft, TargetOutput(p, hidden[0])) == 1).all()


ROWS, VOCAB = 12, 5
# Zero, denormal, tiny and ordinary probabilities, with ties and near ties.
score = st.sampled_from([-torch.inf, -120.0, -103.0, -95.0, -88.0, -30.0, -3.0, 0.0, 1e-7, 0.5, 1.0, 40.0])
distribution = st.lists(score, min_size=VOCAB, max_size=VOCAB).filter(lambda scores: max(scores) > -torch.inf)
probs = st.lists(distribution, min_size=ROWS, max_size=ROWS)
search = settings(max_examples=25, deadline=None, derandomize=True)  # 300 pairs of distributions
MAKERS = {case: case.make() for case in VERIFIER_CASES}
JOINT = {case: verifier for case, verifier in MAKERS.items() if case.emitted is None}


def block_of(p: list, q: list, sampled: bool) -> tuple[DraftOutput, TargetOutput]:
    """Return one draft token per row; raw logits are flatter and untruncated, as before temperature and warpers."""
    p, q = torch.tensor(p)[:, None].repeat(1, 2, 1), torch.tensor(q)[:, None]
    raw_p, raw_q = (scores.clamp_min(-60.0) / 2.0 for scores in (p, q))
    target_hidden = torch.linspace(-1.0, 1.0, TARGET_WIDTH).expand(*p.shape[:2], -1)
    draft_hidden = torch.linspace(-1.0, 1.0, DRAFT_WIDTH).expand(*q.shape[:2], -1)
    draft = DraftOutput(q, draft_hidden, raw_q, tokens=q.argmax(-1), sampled=sampled)
    return draft, TargetOutput(p, target_hidden, raw_p)


@search
@given(probs, probs)
def test_no_sampled_distribution_breaks(p, q):
    """Catches NaN or lost probability at zeros, ties and denormals, and tokens that the target excludes."""
    draft, target = block_of(p, q, sampled=True)
    impossible = target.probs()[:, :-1, None] == 0.0
    for case, verifier in MAKERS.items():
        note(case.id)
        found = enumerate_emitted(verifier, draft, target)
        assert ((found.accept >= 0.0) & (found.accept <= 1.0)).all()
        assert (found.replacement >= 0.0).all()  # false for NaN, which an empty distribution becomes
        assert (found.replacement.where(impossible, 0.0) == 0.0).all()
        if case.emitted is not None and not case.gated:  # in float64, gates may decide differently
            expected = case.emitted(Probs.of(draft, target, found.weight))
            torch.testing.assert_close(found.emitted, expected, rtol=0.0, atol=1e-5)


@search
@given(probs, probs)
def test_no_greedy_choice_breaks(p, q):
    """Catches acceptance probabilities other than 0 and 1, and a rejected token that is emitted anyway."""
    draft, target = block_of(p, q, sampled=False)
    for case, verifier in MAKERS.items():
        note(case.id)
        kept = verifier(draft.tokens, draft, target).accept_prob
        assert torch.equal(kept, (greedy_tokens(verifier, draft, target) == draft.tokens).float())


def wide_block(p: list, q: list, sampled: bool) -> tuple[DraftOutput, TargetOutput]:
    """Return the same distributions as blocks of three draft tokens, for verifiers that multiply along a block."""
    draft, target = block_of(p, q, sampled)
    scores, raw = (values.view(-1, GAMMA, VOCAB) for values in (draft.scores, draft.raw_logits))
    behind = torch.zeros(len(scores), 1, VOCAB)
    p, raw_p = (torch.cat([x[:, :1].reshape(-1, GAMMA, VOCAB), behind], 1) for x in (target.scores, target.raw_logits))
    count = len(scores)
    draft_hidden = draft.hidden.expand(-1, GAMMA, -1)[:count]
    target_hidden = target.hidden[:count, :1].expand(-1, GAMMA + 1, -1)
    tokens = (scores + torch.randn(scores.shape, generator=torch.Generator().manual_seed(0))).argmax(-1)
    draft = DraftOutput(scores, draft_hidden, raw, tokens=tokens, sampled=sampled)
    return draft, TargetOutput(p, target_hidden, raw_p)


@search
@given(probs, probs)
def test_no_block_breaks(p, q):
    """Catches NaN from a product of probabilities that underflowed, and probabilities outside of [0, 1]."""
    for sampled in (True, False):
        draft, target = wide_block(p, q, sampled)
        for case, verifier in JOINT.items():
            note(case.id)
            verdict = verifier(draft.tokens, draft, target)
            assert ((verdict.accept_prob >= 0.0) & (verdict.accept_prob <= 1.0)).all()
            for values in (verdict.trace.strict_prob, verdict.trace.tv):
                assert values is None or not values.isnan().any()
            for position in range(GAMMA):
                distribution = verdict.replacement(torch.full((len(draft.tokens),), position))
                assert not distribution.isnan().any()
                assert not sampled or ((distribution >= 0.0).all() and (distribution.sum(-1) > 0.0).all())
