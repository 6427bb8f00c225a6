"""Draft blocks whose length depends on their draft tokens: what each verifier guarantees, by enumeration."""

import itertools
from dataclasses import replace
from functools import cache, partial

import pytest
import torch

from hf_diversed.head import DiversedHead, DiversedHeadConfig
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
from tests.verifier_cases import make_block
from tests.verifiers.process import (
    VOCAB,
    Stop,
    Tables,
    Tokens,
    distance,
    judge,
    outcomes,
    process_probs,
    product_probs,
)


ROUNDING = 1e-6
SEEDS = range(3)
PREFIX = (0,)
GAMMA, LENGTH = 3, 4


def arbitrary(tables: Tables, prefix: Tokens, path: Tokens) -> bool:
    """Stop by chance, but fixed per path: any function of the draft tokens so far, such as the rules of `generate`."""
    return hash((tables.seed, prefix, path)) % 2 == 0


whole_blocks_too = pytest.mark.parametrize("stop", [None, arbitrary], ids=["none", "arbitrary"])


def small_head(**config) -> DiversedVerifier:
    """A verifier with a head that reads the distributions, per position or per token."""
    kind = {"head_type": "mlp", "intermediate_size": 5, "features": "distribution", "token_features": True}
    head = DiversedHead(DiversedHeadConfig(VOCAB, **kind)).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(5)
    for parameter in head.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return DiversedVerifier(head, **config)


POSITIONS = {
    **{spec: partial(build_verifier, spec) for spec in (
        *("lossless", "static:0.4", "lenience:0.3", "lossy:0.5", "spec_cascade:token_v3:0.5", "spec_cascade:chow:0.4"),
        *("fuzzy:0.05", "contrastive", "typical:0.3:0.6", "top_k_relaxed:2:0.3"),
        *("mars:0.5", "block", "block:static:0.4"),
    )},
    "head": small_head,
    "head, max_bias": partial(small_head, strictness=0.1, max_bias=0.1),
    "head, max_ratio": partial(small_head, strictness=0.1, max_ratio=2.0),
    "block of a head": lambda: BlockVerifier(small_head()),
    "phase": lambda: PhaseVerifier(StaticEnsembleVerifier(0.3), LosslessVerifier(), begin=1, end=2),
}  # fmt: skip


@cache
def emitted(verifier: Verifier, tables: Tables, prefix: Tokens) -> torch.Tensor:
    """Return the distribution that a block of one draft token emits at its draft position."""
    v = torch.zeros(VOCAB).double()
    for tokens, chance in process_probs(verifier, tables, 1, 2, prefix).items():
        v[tokens[0]] += chance
    return v


@pytest.mark.parametrize("name", POSITIONS)
def test_every_draft_position_emits_the_same_distribution(name: str):
    """Catches acceptance or a residual that depends on where the block ends. The bonus token follows v here, which
    only enumeration can do, so every token of a sequence must follow v, whatever ended the blocks."""
    verifier = POSITIONS[name]()
    assert verifier.allows_early_stop
    for seed in SEEDS:
        tables = Tables(seed)
        v = partial(emitted, verifier)
        found = process_probs(verifier, tables, GAMMA, LENGTH, bonus=v, stop=arbitrary)
        assert distance(found, product_probs(v, tables, LENGTH)) < ROUNDING


@pytest.mark.parametrize("spec", ["fuzzy:0.05", "block:static:0.4"])
def test_importance_weights_stay_exact(spec: str):
    """Catches log-probabilities of the records for the distribution of a block of another length."""
    for seed in SEEDS:
        found = process_probs(build_verifier(spec), Tables(seed), GAMMA, LENGTH, weighted=True, stop=arbitrary)
        assert distance(found, product_probs(Tables.p, Tables(seed), LENGTH)) < 1e-5


def joint_paths(tables: tuple[Tables, Tables], stop: Stop, gamma: int) -> list[tuple[Tokens, Tokens]]:
    """Return the blocks of two rows, of one length that depends on the draft tokens of both."""
    found, open_pairs = [], [((), ())]
    while open_pairs:
        longer = [((*a, x), (*b, y)) for a, b in open_pairs for x in range(VOCAB) for y in range(VOCAB)]
        open_pairs = []
        for a, b in longer:
            ends = len(a) == gamma or stop(tables[0], a, b)
            (found if ends else open_pairs).append((a, b))
    return found


@pytest.mark.parametrize("verifier", [LosslessVerifier(), BlockVerifier()], ids=repr)
def test_rows_of_a_batch_stay_independent(verifier: Verifier):
    """Catches a row whose distribution depends on another row that ends the block of both."""

    def row(tables: Tables, path: Tokens) -> dict[Tokens, float]:
        """The distribution of the first two tokens that a row emits with a block, times the block's probability."""
        block, found = judge(verifier, tables, PREFIX, len(path), paths=[path]), {}
        for tokens, chance in outcomes(block, tables, PREFIX, len(path), Tables.p, weighted=False):
            rest = product_probs(Tables.p, tables, max(2 - len(tokens), 0), PREFIX + tokens)
            for tail, share in rest.items():
                key = (tokens + tail)[:2]
                found[key] = found.get(key, 0.0) + chance * share
        return found

    for seed in SEEDS:
        tables, found = (Tables(seed), Tables(seed + 10)), {}
        pairs = joint_paths(tables, arbitrary, GAMMA)
        assert {len(a) for a, _ in pairs} == set(range(1, GAMMA + 1))
        for a, b in pairs:
            for (x, share), (y, other) in itertools.product(row(tables[0], a).items(), row(tables[1], b).items()):
                found[x + y] = found.get(x + y, 0.0) + share * other
        singles = [product_probs(Tables.p, each, 2) for each in tables]
        expected = {x + y: s * t for (x, s), (y, t) in itertools.product(singles[0].items(), singles[1].items())}
        assert distance(found, expected) < ROUNDING


def reached(verifier: Verifier, sampled: bool, length: int) -> torch.Tensor:
    """Return the probability of accepting the first 1, 2, ... draft tokens of blocks of `length`: `[B, length]`."""
    draft, target = make_block(sampled=sampled, rows=40)
    tokens = torch.randint(draft.scores.shape[-1], draft.tokens.shape, generator=torch.Generator().manual_seed(0))
    tokens = torch.where(
        torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.6, draft.tokens, tokens
    )
    draft = replace(
        draft, scores=draft.scores[:, :length], hidden=None, raw_logits=None, tokens=tokens[:, :length], active=None,
        num_drafted=None,
    )  # fmt: skip
    target = replace(target, scores=target.scores[:, : length + 1], hidden=None, raw_logits=None)
    return verifier(tokens, draft, target).accept_prob.cumprod(-1)


def more_permissive(verifier: Verifier, sampled: bool = True) -> float:
    """Return by how much a shorter block is more likely to accept the same draft tokens, at most."""
    whole = reached(verifier, sampled, GAMMA)
    return max(float((reached(verifier, sampled, n) - whole[:, :n]).max()) for n in range(1, GAMMA))


def test_a_short_block_forgives_only_with_a_whole_window():
    """Catches FLy without `window_size` in blocks that end early: its window shrinks with the block, so an early stop
    would accept draft tokens that the whole block rejects. With `window_size`, a shorter block forgives less."""
    for window in (1, 2):
        assert FLyVerifier(0.1, window).allows_early_stop
        assert more_permissive(FLyVerifier(0.1, window)) <= ROUNDING
    assert not FLyVerifier(0.1).allows_early_stop
    assert more_permissive(FLyVerifier(0.1)) > 0.1
    assert not PhaseVerifier(FLyVerifier(), begin=1, end=2).allows_early_stop
    assert PhaseVerifier(FLyVerifier(window_size=2), begin=1, end=2).allows_early_stop


def test_fly_without_forgiveness_is_lossless():
    verifier = FLyVerifier(float("inf"), 1)
    for seed in SEEDS:
        found = process_probs(verifier, Tables(seed), GAMMA, LENGTH, stop=arbitrary)
        assert distance(found, product_probs(Tables.p, Tables(seed), LENGTH)) < ROUNDING
