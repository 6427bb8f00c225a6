"""Settings at which relaxed verifiers are lossless, by the distribution of whole sequences."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from hf_diversed.verifiers import (
    BlockVerifier,
    DiversedVerifier,
    PhaseVerifier,
    StaticEnsembleVerifier,
    Verifier,
    build_verifier,
)
from tests.verifier_cases import random_head
from tests.verifiers.process import Tables, distance, process_probs, product_probs


TOLERANCE = 1e-6


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
    """Catches a verifier whose strict end does not follow the target's distribution of whole sequences."""
    verifier = LOSSLESS_ENDS[name]()
    for seed in range(3):
        found = process_probs(verifier, Tables(seed, 2.0), 2, 3)
        assert distance(found, product_probs(Tables.p, Tables(seed, 2.0), 3)) < TOLERANCE
