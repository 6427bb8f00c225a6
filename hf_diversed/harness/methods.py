"""Decoding methods by name."""

import copy
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import CompileConfig, PreTrainedModel

from hf_diversed import _compat
from hf_diversed.formatting import COMPILED, LOSSLESS, PLAIN, did_you_mean
from hf_diversed.generation.options import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.method_names import AS_TRAINED, DIVERSED, MethodName
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
    """A decoding method: the target alone, our loop with a verifier, or transformers' assisted decoding.

    Attributes:
        label: name in results.
        verifier: verifier of our loop; None for other methods.
        upstream: whether transformers' assisted decoding runs, for batches of one row.
        ensemble_weight: `assistant_ensemble_weight` of transformers' assisted decoding.
        compile_config: compile configuration, with static shapes; None decodes eagerly.
        truncation: arguments of `generate` that truncate the target's distribution, for plain decoding.
    """

    label: str
    verifier: Verifier | None = None
    upstream: bool = False
    ensemble_weight: float | None = None
    compile_config: CompileConfig | None = field(default=None, compare=False)  # same distribution
    truncation: tuple[tuple[str, float], ...] = ()

    @property
    def is_plain(self) -> bool:
        return self.verifier is None and not self.upstream

    @cached_property
    def definition(self) -> str:
        """A reproducible description of the verifier, with a digest of its head; equal for equal decoding."""
        if self.upstream:
            return f"upstream({self.ensemble_weight})"
        if self.verifier is None:
            return ":".join(["plain", *(f"{name}={value:g}" for name, value in self.truncation)])
        return describe(self.verifier)

    @property
    def static_weight(self) -> float | None:
        """The constant weight on the target of a static ensemble, 1 if lossless; None for other methods."""
        verifier = self.verifier
        if isinstance(verifier, StaticEnsembleVerifier) and verifier.settings().keys() == {"weight"}:
            return verifier.weight
        return 1.0 if isinstance(verifier, LosslessVerifier) else None

    @property
    def default_gamma(self) -> int:
        """The verifier's default number of draft tokens per round, else 5."""
        verifier_default = None if self.verifier is None else self.verifier.num_assistant_tokens
        return verifier_default or DEFAULT_NUM_ASSISTANT_TOKENS

    def generate_kwargs(self, draft: PreTrainedModel | None, num_assistant_tokens: int | None) -> dict[str, Any]:
        """Return the arguments of the target's `generate`; without a draft model, those of prompt lookup."""
        gamma = num_assistant_tokens or self.default_gamma
        if self.upstream:
            weight = {} if self.ensemble_weight is None else {"assistant_ensemble_weight": self.ensemble_weight}
            if draft is None:
                return {"prompt_lookup_num_tokens": gamma} | weight
            return {"assistant_model": constant_draft(draft, gamma)} | weight
        static: dict[str, Any] = {}
        if self.compile_config is not None:
            static = {"cache_implementation": "static", "compile_config": self.compile_config}
        if self.verifier is None:
            return static | dict(self.truncation)
        static["verifier"] = self.verifier
        if draft is None:
            return {"prompt_lookup_num_tokens": gamma} | static
        return {"assistant_model": draft, "num_assistant_tokens": num_assistant_tokens} | static


logger = _compat.get_logger(__name__)
MethodLike = str | tuple[str, Verifier] | Method
HeadLike = DiversedHead | str | os.PathLike


def build_methods(
    specs: Sequence[MethodLike], head: HeadLike | None = None, device: torch.device | str | None = None
) -> list[Method]:
    """Build methods from names.

    Args:
        specs: "target" (the target alone), "target:top_p=0.9" and the like (the target alone with some of
            `TRUNCATIONS`, separated by colons), "lossless", a verifier with its parameters ("static:0.7",
            "spec_cascade:token_v3:0.5"), "diversed" (the given head as trained) or "diversed:<folder or Hub id>",
            either with an optional "@<strictness>", a pair (label, verifier), or a `Method`. A number after the last
            @ is the strictness, anything else a revision: "diversed:org/head@main@0.5".
        head: the head of "diversed": an instance, a folder or a Hub id.
        device: the device of loaded heads.

    Raises:
        ValueError: if a name is unknown, parameters are invalid, "diversed" has no head, or a label is repeated.
        TypeError: if a pair's second item is not a `Verifier`.
    """
    methods = [_build(spec, head, device) for spec in specs]
    if not methods:
        raise ValueError(
            '`methods` must name at least one method, got none; for example ["target", "lossless", "static:0.7"].'
        )
    labels = [method.label for method in methods]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ValueError(f"`methods` must have different labels, got {', '.join(repeated)} more than once.")
    return methods


def _build(spec: MethodLike, head: HeadLike | None, device: torch.device | str | None) -> Method:
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, tuple):
        label, verifier = spec
        if not isinstance(verifier, Verifier):
            raise TypeError(f"method {label!r} must come with a Verifier, got {type(verifier).__name__}.")
        if label in (PLAIN, LOSSLESS):
            raise ValueError(f"the label {label!r} is reserved for the reference decoding; choose another one.")
        return Method(label, verifier)
    parsed = MethodName.parse(spec)
    if parsed.compiled:
        raise ValueError(
            f"method {spec!r} must not start with {COMPILED!r}: only benchmarks.rounds compiles methods by name. "
            "Remove it, or pass a Method with a compile_config."
        )
    if parsed.name == PLAIN:
        return Method(spec, truncation=tuple(parsed.truncation().items()))
    if parsed.name == DIVERSED and parsed.parameters != "":
        chosen = parsed.parameters or head
        if chosen is None:
            raise ValueError(f"method {spec!r} needs a head: pass head=, or name it as in diversed:org/head@0.5.")
        if isinstance(chosen, (str, os.PathLike)):
            chosen = load_head(os.fspath(chosen), device)
        strictness = AS_TRAINED if parsed.strictness is None else parsed.strictness
        if parsed.strictness is None and chosen.config.strictness != AS_TRAINED:
            logger.warning_once(
                f"{spec} uses strictness {AS_TRAINED}, as trained; for the head's default in generate, write "
                f"{spec}@{chosen.config.strictness:g}."
            )
        return Method(spec, DiversedVerifier(chosen, strictness=strictness))
    name = parsed.name.partition("@")[0]
    if name == DIVERSED:
        raise ValueError(
            f"method {spec!r} must have the form diversed or diversed:<folder or Hub id>, either with @<strictness "
            "in [0, 1]>."
        )
    if name not in VERIFIERS:
        known = [PLAIN, *VERIFIERS]
        raise ValueError(
            f"unknown method {spec!r}{did_you_mean(name, known)}; known methods: {', '.join(known)}, with parameters "
            "as in lenience:0.3."
        )
    return Method(spec, build_verifier(spec))


def constant_draft(draft: PreTrainedModel, gamma: int) -> PreTrainedModel:
    """Return a shallow copy of the draft model whose generation config sets a constant gamma.

    transformers reads it only there.
    """
    shallow = copy.copy(draft)
    shallow.generation_config = copy.deepcopy(draft.generation_config)
    shallow.generation_config.num_assistant_tokens = gamma
    shallow.generation_config.num_assistant_tokens_schedule = "constant"
    shallow.generation_config.assistant_confidence_threshold = 0.0
    return shallow


def describe(verifier: Verifier) -> str:
    """Return a description of a verifier with its parameters and a digest of each module."""
    settings = []
    for name, value in verifier.settings().items():
        if isinstance(value, Verifier):
            text = describe(value)
        else:
            text = module_digest(value) if isinstance(value, torch.nn.Module) else repr(value)
        settings.append(f"{name}={re.sub(' at 0x[0-9a-f]+', '', text)}")  # addresses differ between runs
    return f"{type(verifier).__name__}({', '.join(settings)})"
