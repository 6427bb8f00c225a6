"""Methods by name: the ways to decode that are compared with each other."""

import copy
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import CompileConfig, PreTrainedModel

from hf_diversed.formatting import LOSSLESS, PLAIN, did_you_mean
from hf_diversed.generation.planning import DEFAULT_NUM_ASSISTANT_TOKENS
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
    """One way to decode: the target alone, our loop under a rule, or upstream's assisted decoding.

    Attributes:
        label: names it in results. verifier: the rule, where our loop runs.
        upstream: upstream's assisted decoding, of one row; with `ensemble_weight`, its `assistant_ensemble_weight`.
        compile_config: decode over static shapes, compiled so; None for the eager way.
    """

    label: str
    verifier: Verifier | None = None
    upstream: bool = False
    ensemble_weight: float | None = None
    compile_config: CompileConfig | None = field(default=None, compare=False)  # how, not what

    @property
    def is_plain(self) -> bool:
        return self.verifier is None and not self.upstream

    @cached_property
    def rule(self) -> str:
        """The rule in words that survive a restart, with a digest of its head: equal words, equal decoding."""
        if self.upstream:
            return f"upstream({self.ensemble_weight})"
        return "plain" if self.verifier is None else describe(self.verifier)

    @property
    def static_weight(self) -> float | None:
        """The constant weight on the target that the rule amounts to (1 if lossless); None for others. Methods that
        have one make up the static curve."""
        verifier = self.verifier
        if isinstance(verifier, StaticEnsembleVerifier) and verifier.settings().keys() == {"weight"}:
            return verifier.weight
        return 1.0 if isinstance(verifier, LosslessVerifier) else None

    def generate_kwargs(self, draft: PreTrainedModel | None, num_assistant_tokens: int | None) -> dict[str, Any]:
        """What `generate` of the target takes; `num_assistant_tokens` drafts per round, None for the rule's own.

        Args:
            draft: None looks drafts up in the text.
        """
        gamma = num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
        if self.upstream:
            weight = {} if self.ensemble_weight is None else {"assistant_ensemble_weight": self.ensemble_weight}
            drafts = (
                {"prompt_lookup_num_tokens": gamma}
                if draft is None
                else {"assistant_model": constant_draft(draft, gamma)}
            )
            return drafts | weight
        static: dict[str, Any] = {}
        if self.compile_config is not None:
            static = {"cache_implementation": "static", "compile_config": self.compile_config}
        if self.verifier is None:
            return static
        if draft is None:
            return {"prompt_lookup_num_tokens": gamma, "verifier": self.verifier} | static
        ours = {"assistant_model": draft, "verifier": self.verifier, "num_assistant_tokens": num_assistant_tokens}
        return ours | static


MethodLike = str | tuple[str, Verifier] | Method
HeadLike = DiversedHead | str | os.PathLike


def build_methods(
    specs: Sequence[MethodLike], head: HeadLike | None = None, device: torch.device | str | None = None
) -> list[Method]:
    """Build methods from names.

    Args:
        specs: each one of "target" (the target alone), "lossless", a rule with its parameters ("static:0.7",
            "spec_cascade:token_v3:0.5"), "diversed" (the given head), "diversed:<folder or Hub id>", either with
            "@<strictness>" behind it, or a pair (label, verifier) in Python. A number behind the last @ is the
            strictness, any other word a revision: "diversed:org/head@main@0.5".
        head: what "diversed" means; an instance, a folder or a Hub id. device: where to load heads to.

    Raises:
        ValueError: on unknown names, wrong parameters, "diversed" without a head, or a label that comes twice.
    """
    methods = [_build(spec, head, device) for spec in specs]
    if not methods:
        raise ValueError(
            '`methods` must name at least one method, got none; for example ["target", "lossless", "static:0.7"].'
        )
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
        return Method(label, verifier)
    name = re.split("[:@]", spec)[0]
    if spec == PLAIN:
        return Method(spec)
    if name == "diversed":
        return Method(spec, _diversed(spec, head, device))
    if name not in VERIFIERS:
        known = [PLAIN, *VERIFIERS]
        raise ValueError(
            f"unknown method {spec!r}{did_you_mean(name, known)}; known are {', '.join(known)}, with parameters as in "
            "lenience:0.3."
        )
    return Method(spec, build_verifier(spec))


def _diversed(spec: str, head: HeadLike | None, device: torch.device | str | None) -> DiversedVerifier:
    """The rule of "diversed[:<source>][@<strictness>]"."""
    rest, strictness = spec, 0.5
    before, _, last = spec.rpartition("@")
    if before and _is_number(last):
        rest, strictness = before, float(last)
    name, colon, source = rest.partition(":")
    if name != "diversed" or (colon and not source):
        raise ValueError(
            f"method {spec!r} must read diversed or diversed:<folder or Hub id>, either with @<strictness in [0, 1]>."
        )
    chosen = source or head
    if chosen is None:
        raise ValueError(f"method {spec!r} needs a head: pass head=, or name it as in diversed:org/head@0.5.")
    if isinstance(chosen, (str, os.PathLike)):
        chosen = load_head(os.fspath(chosen), device)
    return DiversedVerifier(chosen, strictness=strictness)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def constant_draft(draft: PreTrainedModel, gamma: int) -> PreTrainedModel:
    """A shallow twin of the draft with its draft length pinned: upstream reads it from there only."""
    twin = copy.copy(draft)
    twin.generation_config = copy.deepcopy(draft.generation_config)
    twin.generation_config.num_assistant_tokens = gamma
    twin.generation_config.num_assistant_tokens_schedule = "constant"
    twin.generation_config.assistant_confidence_threshold = 0.0
    return twin


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
