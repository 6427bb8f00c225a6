"""Verifiers by name. To add one, add a file here and an entry in `VERIFIERS` and in `tests/verifier_cases.py`."""

import inspect
import re

from hf_diversed.formatting import did_you_mean
from hf_diversed.method_names import DIVERSED, MethodName
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
from hf_diversed.verifiers.phase import PhaseVerifier
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
    "typical": TypicalAcceptanceVerifier,
    "top_k_relaxed": TopKRelaxedVerifier,
    "mars": MarsVerifier,
    "fly": FLyVerifier,
    "block": BlockVerifier,
    "phase": PhaseVerifier,
}


# Example specifications of the verifiers that `build_verifier` supports.
EXAMPLES = (
    *("lossless", "static:0.7", "static:0.3", "lenience:0.3", "lossy:0.5", "spec_cascade:token_v3:0.5"),
    *("fuzzy:0.2:js", "contrastive:0.5:0.1", "typical", "top_k_relaxed:10:0.6", "mars:0.9", "fly:0.3:2"),
    *("block", "block:static:0.7"),
)


def build_verifier(spec: str) -> Verifier:
    """Build a verifier from a specification: "name" or "name:value:value".

    Examples are "lossless", "static:0.7" and "spec_cascade:chow:0.3". The parameter may be another verifier, as in
    "block:static:0.7".

    Raises:
        ValueError: if the name is unknown, or parameters are missing or invalid.
    """
    parsed = MethodName.parse(spec)
    name, values = parsed.name, parsed.values
    if name == DIVERSED:
        raise ValueError(
            f"verifier {spec!r} needs a head: pass diversed_head= instead, a DiversedHead, a folder or a Hub id; "
            "diversed_strictness= sets its strictness."
        )
    if parsed.compiled:
        raise ValueError(
            f"verifier {spec!r} must not start with 'compiled:', which only `benchmarks.rounds` accepts; pass "
            'cache_implementation="static" to generate instead.'
        )
    if name not in VERIFIERS:
        if (written := _in_our_form(spec)) is not None:
            raise ValueError(f"verifier {spec!r} must be written as {written!r}.")
        raise ValueError(
            f"unknown verifier {name!r}{did_you_mean(name, VERIFIERS)}; known verifiers: {', '.join(VERIFIERS)}."
        )
    signature = inspect.signature(VERIFIERS[name])
    is_nested = values and isinstance(values[0], str) and "verifier" in signature.parameters
    arguments = [build_verifier(str(parsed.parameters))] if is_nested else values
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"verifier {spec!r} {_usage(name, len(values))}.") from error
    try:
        return VERIFIERS[name](*arguments)
    except TypeError as error:
        raise ValueError(f"verifier {spec!r} cannot be built: {error}") from error


def _usage(name: str, num_values: int) -> str:
    example = next((spec for spec in EXAMPLES if MethodName.parse(spec).name == name), None)
    if example is None:
        return f"cannot be built from text: build {VERIFIERS[name].__name__} in Python and pass the instance"
    parameters = inspect.signature(VERIFIERS[name]).parameters.values()
    form = "".join(f":{item.name}" if item.default is item.empty else f"[:{item.name}]" for item in parameters)
    shown = f" (the form is {name}{form})" if len(parameters) > 1 else ""
    problem = f"has the wrong number of parameters, {num_values}; write" if num_values else "needs a value,"
    return f"{problem} for example {example}{shown}"


def _in_our_form(spec: str) -> str | None:
    """Return "lenience:0.3" for "lenience=0.3", "lenience(0.3)" and "lenience(lenience=0.3)"; None for other text."""
    name, *words = re.findall(r"[\w.+-]+", spec) or [""]
    if name not in VERIFIERS or name == spec:
        return None
    parameters = inspect.signature(VERIFIERS[name]).parameters
    return ":".join([name, *(word for word in words if word not in parameters)])


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
