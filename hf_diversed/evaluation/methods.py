"""Methods by name: what a row of an evaluation decodes with."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.provenance import module_digest
from hf_diversed.verifiers import (
    VERIFIERS,
    DiversedVerifier,
    LosslessVerifier,
    StaticEnsembleVerifier,
    Verifier,
    build_verifier,
)


@dataclass(frozen=True)
class Method:
    """One way to decode.

    Attributes:
        label: names it in results. `verifier`: the rule; None for the target alone.
        rule: the rule in words that survive a restart, with a digest of its head: equal words, equal decoding.
        static_weight: the constant weight on the target that the rule amounts to (1 if lossless); None for others.
            Methods that have one make up the static curve.
    """

    label: str
    verifier: Verifier | None
    rule: str
    static_weight: float | None


MethodLike = str | tuple[str, Verifier] | Method
HeadLike = DiversedHead | str | os.PathLike


def build_methods(
    specs: Sequence[MethodLike], head: HeadLike | None = None, device: torch.device | str | None = None
) -> list[Method]:
    """Build methods from names.

    Args:
        specs: each one of "ar" (the target alone), "sd" (lossless), a rule with its parameters ("static:0.7",
            "spec_cascade:token_v3:0.5"), "diversed" (the given head), "diversed:<folder or Hub id>", either with
            "@<quality>" behind it, or a pair (label, verifier) in Python. A number behind the last @ is the dial, any
            other word a revision: "diversed:org/head@main@0.5".
        head: what "diversed" means; an instance, a folder or a Hub id. device: where to load heads to.

    Raises:
        ValueError: on unknown names, wrong parameters, "diversed" without a head, or a label that comes twice.
    """
    methods = [_build(spec, head, device) for spec in specs]
    if not methods:
        raise ValueError('`methods` must name at least one method, got none; for example ["ar", "sd", "static:0.7"].')
    labels = [method.label for method in methods]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"`methods` must have different labels, got {', '.join(twice)} more than once.")
    return methods


def _build(spec: MethodLike, head: HeadLike | None, device: torch.device | str | None) -> Method:
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, tuple):
        label, verifier = spec
        if not isinstance(verifier, Verifier):
            raise TypeError(f"method {label!r} must come with a Verifier, got {type(verifier).__name__}.")
        if label in (PLAIN, LOSSLESS):
            raise ValueError(f"the label {label!r} is taken: it names the reference decoding; choose another one.")
        return _method(label, verifier)
    name = re.split("[:@]", spec)[0]
    if spec == PLAIN:
        return _method(spec, None)
    if spec == LOSSLESS:
        return _method(spec, LosslessVerifier())
    if name == "diversed":
        return _method(spec, _diversed(spec, head, device))
    if name not in VERIFIERS:
        known = ", ".join([PLAIN, LOSSLESS, *sorted(VERIFIERS)])
        raise ValueError(f"unknown method {spec!r}; known are {known}, with parameters as in static:0.7.")
    return _method(spec, build_verifier(spec))


def _diversed(spec: str, head: HeadLike | None, device: torch.device | str | None) -> DiversedVerifier:
    """The rule of "diversed[:<source>][@<quality>]"."""
    rest, quality = spec, 0.5
    before, _, last = spec.rpartition("@")
    if before and _is_number(last):
        rest, quality = before, float(last)
    name, colon, source = rest.partition(":")
    if name != "diversed" or (colon and not source):
        raise ValueError(
            f"method {spec!r} must read diversed or diversed:<folder or Hub id>, either with @<quality in [0, 1]>."
        )
    chosen = source or head
    if chosen is None:
        raise ValueError(f"method {spec!r} needs a head: pass head=, or name it as in diversed:org/head@0.5.")
    if isinstance(chosen, (str, os.PathLike)):
        chosen = load_head(os.fspath(chosen), device)
    return DiversedVerifier(chosen, quality=quality)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _method(label: str, verifier: Verifier | None) -> Method:
    static_weight = None
    if isinstance(verifier, StaticEnsembleVerifier) and verifier.max_bias is verifier.bias_budget is None:
        static_weight = verifier.weight
    elif isinstance(verifier, LosslessVerifier):
        static_weight = 1.0
    return Method(label, verifier, "plain" if verifier is None else describe(verifier), static_weight)


def describe(verifier: Verifier) -> str:
    """The rule, its parameters and a digest of every module it holds."""
    shown = []
    for name, value in verifier.settings().items():
        if isinstance(value, Verifier):
            text = describe(value)
        else:
            text = module_digest(value) if isinstance(value, torch.nn.Module) else repr(value)
        shown.append(f"{name}={re.sub(' at 0x[0-9a-f]+', '', text)}")  # an address does not survive a restart
    return f"{type(verifier).__name__}({', '.join(shown)})"
