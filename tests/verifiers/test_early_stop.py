"""Draft blocks whose length depends on their draft tokens: what each verifier guarantees, by enumeration."""

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
from tests.verifiers.process import VOCAB, Tables, Tokens, distance, process_probs, product_probs


ROUNDING = 1e-6
SEEDS = range(3)
GAMMA, LENGTH = 3, 4


def arbitrary(tables: Tables, prefix: Tokens, path: Tokens) -> bool:
    """Stop by chance, but fixed per path: any function of the draft tokens so far, such as the rules of `generate`."""
    return hash((tables.seed, prefix, path)) % 2 == 0


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


def test_fly_allows_early_ends_with_a_fixed_window_only():
    """Catches FLy without `window_size` in blocks that end early: its window shrinks with the block, so an early end
    would accept draft tokens that the whole block rejects."""
    assert FLyVerifier(0.1, 1).allows_early_stop
    assert not FLyVerifier(0.1).allows_early_stop
    assert not PhaseVerifier(FLyVerifier(), begin=1, end=2).allows_early_stop
    assert PhaseVerifier(FLyVerifier(window_size=2), begin=1, end=2).allows_early_stop
