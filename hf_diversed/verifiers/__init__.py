"""The rules, by name. A new rule is one file here, one line below, one row in `tests/verifier_cases.py`."""

from hf_diversed.verifiers.base import LawVerifier, Verifier
from hf_diversed.verifiers.diversed import DiversedVerifier
from hf_diversed.verifiers.lenience import LenientVerifier
from hf_diversed.verifiers.lossless import LosslessVerifier
from hf_diversed.verifiers.spec_cascade import SpecCascadeVerifier
from hf_diversed.verifiers.static_ensemble import StaticEnsembleVerifier


VERIFIERS: dict[str, type[Verifier]] = {
    "lossless": LosslessVerifier,
    "static_ensemble": StaticEnsembleVerifier,
    "diversed": DiversedVerifier,
    "lenience": LenientVerifier,
    "spec_cascade": SpecCascadeVerifier,
}

__all__ = [
    "VERIFIERS",
    "DiversedVerifier",
    "LawVerifier",
    "LenientVerifier",
    "LosslessVerifier",
    "SpecCascadeVerifier",
    "StaticEnsembleVerifier",
    "Verifier",
]
