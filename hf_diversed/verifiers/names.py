"""Verifiers by name: the only place where text becomes a verifier.

A name is `name[:parameter ...]`, as in "lenience:0.3" and "spec_cascade:chow:0.3". "diversed" takes a head and a
strictness instead: `diversed[:<folder or Hub id>][@<strictness>]`.
"""

import inspect
import os
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

import torch

from hf_diversed.verifiers.base import AS_TRAINED, Verifier
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


if TYPE_CHECKING:
    from hf_diversed.head import DiversedHead


# Methods with which others are compared: the target alone, which has no verifier, and lossless speculative decoding.
PLAIN, LOSSLESS = "target", "lossless"
DIVERSED = "diversed"

VERIFIERS: dict[str, type[Verifier]] = {
    LOSSLESS: LosslessVerifier,
    "static": StaticEnsembleVerifier,
    DIVERSED: DiversedVerifier,
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
# Examples of names that `build_verifier` supports without a head.
EXAMPLES = (
    *("lossless", "static:0.7", "static:0.3", "lenience:0.3", "lossy:0.5", "spec_cascade:token_v3:0.5"),
    *("fuzzy:0.2:js", "contrastive:0.5:0.1", "typical", "top_k_relaxed:10:0.6", "mars:0.9", "fly:0.3:2"),
    *("block", "block:static:0.7"),
)


def base_name(text: str) -> str:
    """Return the name without parameters: "static" for "static:0.7"."""
    return re.split("[:@]", text, maxsplit=1)[0]


def family(text: str) -> tuple[str, float | None]:
    """Return the name without its last parameter, and that parameter if it is a number: ("static", 0.7).

    The parameter of "diversed" is its strictness, and 0.5 if the name has none: the name does not tell whether the
    head was calibrated.
    """
    if base_name(text) == DIVERSED:
        head, strictness = _split_head(text)
        return f"{DIVERSED}:{head}" if head else DIVERSED, AS_TRAINED if strictness is None else strictness
    before, colon, last = text.rpartition(":")
    value = _number(last) if colon else None
    return (text, None) if value is None else (before, value)


def build_verifier(spec: str) -> Verifier:
    """Build a verifier without a head from its name: "lossless", "static:0.7", "spec_cascade:chow:0.3".

    The parameter may be another verifier, as in "block:static:0.7".

    Raises:
        ValueError: if the name is unknown, or parameters are missing or invalid.
    """
    if base_name(spec) == DIVERSED:
        raise ValueError(
            f"verifier {spec!r} needs a head: pass diversed_head= instead, a DiversedHead, a folder or a Hub id; "
            "diversed_strictness= sets its strictness."
        )
    name, _, parameters = spec.partition(":")
    if name not in VERIFIERS:
        close = get_close_matches(name, VERIFIERS, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ValueError(
            f"unknown verifier {name!r}{hint}; known verifiers: {', '.join(VERIFIERS)}, with parameters as in "
            "lenience:0.3."
        )
    words = parameters.split(":") if parameters else []
    values = [word if (value := _number(word)) is None else value for word in words]
    signature = inspect.signature(VERIFIERS[name])
    is_nested = values and isinstance(values[0], str) and "verifier" in signature.parameters
    arguments = [build_verifier(parameters)] if is_nested else values
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"verifier {spec!r} {_usage(name, len(values))}.") from error
    try:
        return VERIFIERS[name](*arguments)
    except TypeError as error:
        raise ValueError(f"verifier {spec!r} cannot be built: {error}") from error


def build_diversed(
    spec: str, head: "DiversedHead | str | os.PathLike | None", device: torch.device | str | None = None
) -> DiversedVerifier:
    """Build the verifier of a head from its name: "diversed@0.7", "diversed:org/head@main@0.5".

    A number after the last @ is the strictness, anything else a revision. Without one, the head's default is used.

    Args:
        head: the head of a name without a folder or Hub id. device: of a head that is loaded by name.

    Raises:
        ValueError: for another form, a strictness out of range, or if there is no head.
    """
    named, strictness = _split_head(spec)
    chosen = named or head
    if chosen is None:
        raise ValueError(f"method {spec!r} needs a head: pass head=, or name it as in diversed:org/head@0.5.")
    if isinstance(chosen, (str, os.PathLike)):
        from hf_diversed.head import load_head  # imports transformers

        chosen = load_head(os.fspath(chosen), device)
    return DiversedVerifier(chosen, strictness=strictness)


def _split_head(text: str) -> tuple[str, float | None]:
    """Return the folder or Hub id and the strictness of "diversed:org/head@0.5"."""
    before, _, last = text.rpartition("@")
    strictness = _number(last) if before else None
    name, colon, head = (text if strictness is None else before).partition(":")
    if name != DIVERSED or (colon and not head):
        raise ValueError(
            f"{text!r} must have the form {DIVERSED} or {DIVERSED}:<folder or Hub id>, either with "
            "@<strictness in [0, 1]>."
        )
    return head, strictness


def _usage(name: str, num_values: int) -> str:
    example = next((spec for spec in EXAMPLES if base_name(spec) == name), None)
    if example is None:
        return f"cannot be built from text: build {VERIFIERS[name].__name__} in Python and pass the instance"
    parameters = inspect.signature(VERIFIERS[name]).parameters.values()
    form = "".join(f":{item.name}" if item.default is item.empty else f"[:{item.name}]" for item in parameters)
    shown = f" (the form is {name}{form})" if len(parameters) > 1 else ""
    problem = f"has the wrong number of parameters, {num_values}; write" if num_values else "needs a value,"
    return f"{problem} for example {example}{shown}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
