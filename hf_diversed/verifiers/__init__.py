"""Verifiers, one file each. To add one, add entries in `names.VERIFIERS` and in `tests/verifier_cases.py`."""

from hf_diversed.verifiers.base import DistributionVerifier, Verifier
from hf_diversed.verifiers.block import BlockVerifier
from hf_diversed.verifiers.contrastive import ContrastiveVerifier
from hf_diversed.verifiers.diversed import DiversedVerifier
from hf_diversed.verifiers.fly import FLyVerifier
from hf_diversed.verifiers.fuzzy import FuzzyVerifier
from hf_diversed.verifiers.lenience import LenientVerifier
from hf_diversed.verifiers.lossless import LosslessVerifier
from hf_diversed.verifiers.lossy import LossyVerifier
from hf_diversed.verifiers.mars import MarsVerifier
from hf_diversed.verifiers.names import EXAMPLES, VERIFIERS, build_verifier
from hf_diversed.verifiers.phase import PhaseVerifier
from hf_diversed.verifiers.spec_cascade import SpecCascadeVerifier
from hf_diversed.verifiers.static_ensemble import StaticEnsembleVerifier
from hf_diversed.verifiers.top_k_relaxed import TopKRelaxedVerifier
from hf_diversed.verifiers.typical import TypicalAcceptanceVerifier


__all__ = [
    "EXAMPLES",
    "VERIFIERS",
    "BlockVerifier",
    "ContrastiveVerifier",
    "DistributionVerifier",
    "DiversedVerifier",
    "FLyVerifier",
    "FuzzyVerifier",
    "LenientVerifier",
    "LosslessVerifier",
    "LossyVerifier",
    "MarsVerifier",
    "PhaseVerifier",
    "SpecCascadeVerifier",
    "StaticEnsembleVerifier",
    "TopKRelaxedVerifier",
    "TypicalAcceptanceVerifier",
    "Verifier",
    "build_verifier",
]
