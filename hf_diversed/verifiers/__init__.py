"""The rules, by name. A new rule is one file here, one line below, one row in `tests/verifier_cases.py`."""

import inspect

from hf_diversed.verifiers.base import DistributionVerifier, Verifier
from hf_diversed.verifiers.block import BlockVerifier
from hf_diversed.verifiers.cactus import CactusVerifier
from hf_diversed.verifiers.certified import CertifiedVerifier
from hf_diversed.verifiers.contrastive import ContrastiveVerifier
from hf_diversed.verifiers.diversed import DiversedVerifier
from hf_diversed.verifiers.fly import FLyVerifier
from hf_diversed.verifiers.fuzzy import FuzzyVerifier
from hf_diversed.verifiers.lenience import LenientVerifier
from hf_diversed.verifiers.lossless import LosslessVerifier
from hf_diversed.verifiers.lossy import LossyVerifier
from hf_diversed.verifiers.phase import PhaseVerifier
from hf_diversed.verifiers.regret_budget import RegretBudgetVerifier
from hf_diversed.verifiers.spec_cascade import SpecCascadeVerifier
from hf_diversed.verifiers.static_ensemble import StaticEnsembleVerifier
from hf_diversed.verifiers.top_k_relaxed import TopKRelaxedVerifier
from hf_diversed.verifiers.typical import TypicalAcceptanceVerifier


VERIFIERS: dict[str, type[Verifier]] = {
    "lossless": LosslessVerifier,
    "static": StaticEnsembleVerifier,
    "diversed": DiversedVerifier,
    "lenience": LenientVerifier,
    "lossy": LossyVerifier,
    "spec_cascade": SpecCascadeVerifier,
    "fuzzy": FuzzyVerifier,
    "contrastive": ContrastiveVerifier,
    "cactus": CactusVerifier,
    "typical": TypicalAcceptanceVerifier,
    "top_k_relaxed": TopKRelaxedVerifier,
    "regret_budget": RegretBudgetVerifier,
    "fly": FLyVerifier,
    "block": BlockVerifier,
    "phase": PhaseVerifier,
}


def build_verifier(spec: str) -> Verifier:
    """Build a rule from its name and parameters, "name" or "name:value:value": "lossless", "static:0.7",
    "spec_cascade:chow:0.3". The parameter may be another rule: "block:static:0.7".

    Raises:
        ValueError: for an unknown name, or parameters that the rule does not take.
    """
    name, *values = spec.split(":")
    if name not in VERIFIERS:
        raise ValueError(f"unknown verifier {name!r}; registered are {', '.join(sorted(VERIFIERS))}.")
    try:
        if values and values[0] in VERIFIERS:
            return VERIFIERS[name](*[build_verifier(":".join(values))])
        return VERIFIERS[name](*map(_number_or_text, values))
    except TypeError as error:
        raise ValueError(f"verifier {spec!r} lacks or has wrong parameters ({error}); {_usage(name)}.") from error


def _usage(name: str) -> str:
    parameters = inspect.signature(VERIFIERS[name]).parameters.values()
    if any(item.kind is item.KEYWORD_ONLY and item.default is item.empty for item in parameters):
        return f"it takes what text cannot say: build {VERIFIERS[name].__name__} in Python and pass the instance"
    words = (f":{item.name}" if item.default is item.empty else f"[:{item.name}]" for item in parameters)
    return f"it reads {name}{''.join(words)}; or pass an instance"


def _number_or_text(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


__all__ = [
    "VERIFIERS",
    "BlockVerifier",
    "CactusVerifier",
    "CertifiedVerifier",
    "ContrastiveVerifier",
    "DistributionVerifier",
    "DiversedVerifier",
    "FLyVerifier",
    "FuzzyVerifier",
    "LenientVerifier",
    "LosslessVerifier",
    "LossyVerifier",
    "PhaseVerifier",
    "RegretBudgetVerifier",
    "SpecCascadeVerifier",
    "StaticEnsembleVerifier",
    "TopKRelaxedVerifier",
    "TypicalAcceptanceVerifier",
    "Verifier",
    "build_verifier",
]
