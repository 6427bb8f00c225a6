"""Verifiers of whole blocks: whole processes by enumeration, and naive scans."""

import itertools

import pytest
import torch

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.sampling import total_variation
from hf_diversed.verifiers import (
    BlockVerifier,
    ContrastiveVerifier,
    DiversedVerifier,
    FLyVerifier,
    FuzzyVerifier,
    LosslessVerifier,
    PhaseVerifier,
    StaticEnsembleVerifier,
    TypicalAcceptanceVerifier,
    Verifier,
    build_verifier,
)
from hf_diversed.verifiers.base import CompositeVerifier
from hf_diversed.verifiers.fly import forgiving_acceptance
from tests.tiny import tiny_head
from tests.verifier_cases import GAMMA, VOCAB, make_block
from tests.verifiers.process import Tables, distance, judge, process_probs, product_probs


ROUNDING = 1e-6


def random_drafts(draft: DraftOutput, seed: int = 0, **changes) -> DraftOutput:
    """Return the same block with draft tokens that are not all the draft's argmax."""
    tokens = torch.randint(VOCAB, draft.tokens.shape, generator=torch.Generator().manual_seed(seed))
    best = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.5
    settings = {"scores": draft.scores, "tokens": torch.where(best, draft.tokens, tokens), "sampled": draft.sampled}
    return DraftOutput(**{**settings, **changes})


@pytest.mark.parametrize(
    "verifier", [LosslessVerifier(), StaticEnsembleVerifier(0.4), FuzzyVerifier(0.05), ContrastiveVerifier()], ids=repr
)
def test_block_verification_keeps_at_least_as_much(verifier: Verifier):
    """Catches a coupling that is exact but accepts less."""
    gains = []
    for seed, gamma in itertools.product(range(15), (1, 2, 3)):
        token_wise, block_wise = (judge(r, Tables(seed), (0,), gamma) for r in (verifier, BlockVerifier(verifier)))
        gains.append(block_wise.expected_accepted() - token_wise.expected_accepted())
        assert gains[-1] > -ROUNDING
        assert gamma > 1 or abs(gains[-1]) < ROUNDING
    assert max(gains) > 0.01


def test_block_reports_what_its_verifier_reports():
    """Catches lost weights or strictness, and draft tokens of lossless blocks that are recorded as relaxed."""
    draft, target = make_block()
    verdict = BlockVerifier(StaticEnsembleVerifier(0.4))(draft.tokens, draft, target)
    assert (verdict.trace.weight == 0.4).all()
    assert (verdict.trace.strict_prob <= verdict.accept_prob + ROUNDING).float().mean() > 0.8
    lossless = BlockVerifier()(draft.tokens, draft, target)
    assert torch.equal(lossless.trace.strict_prob, lossless.accept_prob)
    assert BlockVerifier(DiversedVerifier(tiny_head(), strictness=0.3)).strictness_per_row() == [0.3]


def naive_fly(own: list[bool], forgivable: list[bool], window: int) -> int:
    """Return the number of accepted draft tokens, decision by decision."""
    for i, kept in enumerate(own):
        behind = own[i + 1 : i + 1 + window]
        if not (kept or (forgivable[i] and len(behind) == window and all(behind))):
            return i
    return len(own)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_fly_is_the_scan_of_its_decisions(window: int):
    """Catches windows that extend past the block, forgiveness within a window, and a wrong lossless share."""
    generator = torch.Generator().manual_seed(window)
    for count, _ in itertools.product(range(1, 6), range(4)):
        native = torch.rand(1, count, generator=generator)
        forgivable = torch.rand(1, count, generator=generator) < 0.7
        reached, by_coin = torch.zeros(count).double(), torch.zeros(count).double()
        for own in itertools.product([True, False], repeat=count):
            chance = torch.where(torch.tensor(own), native[0], 1.0 - native[0]).double().prod()
            kept = naive_fly(list(own), forgivable[0].tolist(), window)
            reached[:kept] += chance
            by_coin[:kept] += chance * torch.tensor(own[:kept]).double()
        accept, strict = forgiving_acceptance(native, forgivable, torch.ones_like(forgivable), torch.tensor([window]))
        torch.testing.assert_close(accept[0].double().cumprod(-1), reached, rtol=0.0, atol=ROUNDING)
        before = torch.cat([torch.ones(1).double(), reached[:-1]])
        torch.testing.assert_close(strict[0].double() * before, by_coin, rtol=0.0, atol=ROUNDING)


def test_fly_window_of_a_block():
    """Catches a default other than the number of draft tokens after the first one."""
    draft, target = make_block("random", rows=8)
    default, own, longer = (
        FLyVerifier(0.0, window)(draft.tokens, random_drafts(draft), target).accept_prob
        for window in (None, GAMMA - 1, GAMMA)
    )
    assert torch.equal(default, own)
    assert not torch.equal(default, longer)


def test_fly_ignores_positions_after_an_eos():
    """Catches NaN scores after a drafted EOS that change the decisions before it."""
    native, forgivable = torch.tensor([[0.7, 1.0, torch.nan, torch.nan]]), torch.ones(1, 4, dtype=torch.bool)
    active = torch.tensor([[True, True, False, False]])
    found = forgiving_acceptance(native, forgivable, active, torch.tensor([1]))
    expected = forgiving_acceptance(native[:, :2], forgivable[:, :2], active[:, :2], torch.tensor([1]))
    for values, alone in zip(found, expected):
        assert torch.equal(values[:, :2], alone)


def test_block_verification_reports_the_emitted_distribution():
    """Catches a bias estimated from the draft token, which is not a draw from q once an earlier one was accepted."""
    draft, target = make_block("random")
    verifier = BlockVerifier(DiversedVerifier(tiny_head(features="distribution", token_features=True)))
    assert verifier.has_emitted_probs
    trace = verifier(draft.tokens, draft, target).trace
    torch.testing.assert_close(trace.bias, total_variation(trace.emitted_probs(), target.probs()[:, :-1]))


@pytest.mark.parametrize("spec", ["lenience:0.1", "typical", "top_k_relaxed:10:0.6", "fly:0:1", "mars:0.1"])
def test_excluded_tokens_are_rejected(spec: str):
    """Catches a token of target probability 0 that is accepted, as fewer than k tokens are left."""
    draft, target = make_block("random")
    scores = target.scores.masked_fill(torch.arange(VOCAB) > 1, -torch.inf)
    draft = random_drafts(draft, tokens=draft.tokens.clamp_min(2))
    assert (build_verifier(spec)(draft.tokens, draft, TargetOutput(scores)).accept_prob == 0.0).all()


def test_fly_gate():
    """Catches an entropy of the whole distribution, in bits, or with an inverted comparison, and p(x) = 0 forgiven."""
    p = torch.tensor([[0.5, 0.3, 0.1, 0.05, 0.05, 0.0]]).log().expand(1, 4, -1)
    entropy = -sum(x * torch.tensor(x).log() for x in (0.5, 0.3, 0.1))
    for token, threshold, expected in ((1, entropy - 1e-4, 1.0), (1, entropy + 1e-4, 0.0), (5, 0.1, 0.0)):
        tokens = torch.tensor([[token, 0, 0]])
        draft = DraftOutput(torch.zeros(1, 3, 6), tokens=tokens, sampled=False)
        verdict = FLyVerifier(float(threshold), 2)(tokens, draft, TargetOutput(p))
        assert verdict.accept_prob[0, 0] == expected


def test_positions_of_other_verifiers_divide_blocks():
    """Catches a window or a block that extends into positions of another verifier."""
    draft, target = make_block("random", rows=8)
    active = torch.tensor([[True, False, True]]).expand_as(draft.tokens)
    for verifier in (BlockVerifier(), FLyVerifier(0.0, 1)):
        parted = verifier(draft.tokens, random_drafts(draft, active=active), target).accept_prob
        alone = LosslessVerifier()(draft.tokens, random_drafts(draft), target).accept_prob
        torch.testing.assert_close(parted[:, ::2], alone[:, ::2], rtol=0.0, atol=ROUNDING)


class ScanningPhase(CompositeVerifier):
    """Computes the phases from the ids alone, one position after the other."""

    def __init__(self, inside: Verifier, outside: Verifier, begin: int, end: int):
        super().__init__(inside, outside)
        self.begin, self.end = begin, end

    def __call__(self, input_ids, draft, target) -> Verdict:
        both = [part(input_ids, draft, target) for part in self._parts]
        here = torch.zeros_like(draft.active)
        for row, ids in enumerate(torch.cat([input_ids, draft.tokens], dim=1).tolist()):
            for i in range(draft.tokens.shape[1]):
                marks = [token for token in ids[: input_ids.shape[1] + i] if token in (self.begin, self.end)]
                here[row, i] = bool(marks) and marks[-1] == self.begin
        rows = torch.arange(len(here))

        def replacement(positions):
            return torch.where(here[rows, positions, None], *(verdict.replacement(positions) for verdict in both))

        return Verdict(torch.where(here, *(verdict.accept_prob for verdict in both)), replacement)


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("prefix", [(0,), (0, 1), (1, 2, 0), (2, 1, 1)])
def test_phases_follow_the_tokens(gamma: int, prefix: tuple):
    """Catches a phase that misses an emitted token, counts a rejected one, or is off by one at its ends."""
    parts = StaticEnsembleVerifier(0.1), TypicalAcceptanceVerifier(0.3, 0.6)
    for seed in range(3):
        found = process_probs(PhaseVerifier(*parts, begin=1, end=2), Tables(seed), gamma, 4, prefix)
        assert distance(found, process_probs(ScanningPhase(*parts, 1, 2), Tables(seed), gamma, 4, prefix)) < ROUNDING


def test_phase_over_couplings():
    """Catches a block verifier that continues after the phase has ended."""
    for seed in range(4):
        verifier = PhaseVerifier(BlockVerifier(), begin=1, end=2)
        for prefix in ((0,), (0, 1)):
            found = process_probs(verifier, Tables(seed), 3, 4, prefix)
            assert distance(found, product_probs(Tables.p, Tables(seed), 4, prefix)) < ROUNDING
