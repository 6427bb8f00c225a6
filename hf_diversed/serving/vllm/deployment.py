"""What a deployment serves: its rules, their head, and what holds for requests that say nothing of their own.

Knows vLLM's configuration by the names of its fields, and imports nothing of it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from hf_diversed.blocks import DecodingContext
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.serving.vllm.law import Asked
from hf_diversed.serving.vllm.served_head import ServedHead
from hf_diversed.verifiers import (
    VERIFIERS,
    CertifiedVerifier,
    DiversedVerifier,
    LosslessVerifier,
    Verifier,
    build_verifier,
)
from hf_diversed.verifiers.base import check_range
from hf_diversed.verifiers.mixture import LIMITS, MixtureVerifier


ENVIRONMENT = "HF_DIVERSED_VLLM"
KEY = "hf_diversed"  # in --additional-config

# Rules that look at more than one position, or at what vLLM does not show its sampler.
_NOT_SERVED = {
    "spec_cascade": "it reads the draft's raw logits, which vLLM does not keep",
    "regret_budget": "it decodes greedily, and its budget is a sequence's; vLLM keeps no state of rules",
    "fly": "it looks at the drafts behind a rejected one, and vLLM asks about each by itself",
    "block": "it judges whole blocks, and vLLM asks about each draft by itself; vLLM has a block verification of its "
    "own for lossless decoding",
    "phase": "it reads the text so far, which vLLM does not show its sampler",
}
_LOOKED_UP = ("ngram", "ngram_gpu", "suffix")
_WITHOUT_LAWS = ("medusa", "mlp_speculator", "extract_hidden_states", "custom_class")
DIALS = {
    "strictness": "0 accepts every draft, 0.5 is the head as trained, 1 is lossless.",
    "max_bias": "0 is lossless, 1 caps nothing.",
    "max_ratio": "1 is lossless, 0 bounds nothing.",
    "max_drop": "0.01 tolerates one point.",
}
_DEPLOYED = ("rule", "head", "choices", *DIALS)


def named_settings(additional_config: Any) -> dict[str, Any] | None:
    """What a deployment says about rules: the object below "hf_diversed" of `--additional-config`, or the JSON in the
    environment variable HF_DIVERSED_VLLM; None where it says nothing.

    Raises:
        ValueError: if that is no JSON object, or holds a name that is none.
    """
    found = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
    source = f'"{KEY}" of --additional-config'
    if found is None and os.environ.get(ENVIRONMENT):
        source = f"the environment variable {ENVIRONMENT}"
        try:
            found = json.loads(os.environ[ENVIRONMENT])
        except json.JSONDecodeError as error:
            raise ValueError(f"{source} must be JSON, got {os.environ[ENVIRONMENT]!r:.200}: {error}.") from error
    if found is None:
        return None
    if not isinstance(found, Mapping) or (unknown := sorted(found.keys() - set(_DEPLOYED))):
        wrong = f"{', '.join(unknown)} in it" if isinstance(found, Mapping) else repr(found)
        raise ValueError(f"{source} must be an object with some of {', '.join(_DEPLOYED)}; got {wrong:.200}.")
    return dict(found)


@dataclass(frozen=True, eq=False)
class Deployment:
    """The rules of one engine, and how requests are read.

    Attributes:
        names: what requests call the rules, the deployment's own first. rules: those rules, in this order.
        dials: what holds for requests that say nothing of their own: some of quality, max_bias, max_ratio, max_drop.
        head: of "diversed", if that is among them. context: what rules are checked against.
        looked_up: drafts have no law; they are tokens found in the text.
    """

    names: tuple[str, ...]
    rules: tuple[Verifier, ...]
    dials: Mapping[str, float]
    head: DiversedHead | None
    context: DecodingContext
    looked_up: bool

    @classmethod
    def of(cls, vllm_config: Any) -> "Deployment | None":
        """What an engine's configuration names; None where it names nothing.

        Raises:
            ValueError: for rules and heads that cannot be served, settings out of range, and speculative
                configurations whose drafts have no law; all with what to do.
        """
        given = named_settings(vllm_config.additional_config)
        if given is None:
            return None
        looked_up = _check_drafting(vllm_config.speculative_config)
        context = _context(vllm_config, looked_up)
        choices = given.pop("choices", ())
        if isinstance(choices, str) or not all(isinstance(name, str) for name in choices):
            raise ValueError(f"`choices` must be a list of rules by name, got {choices!r:.200}.")
        name = given.pop("rule", "diversed")
        names = tuple(dict.fromkeys((name, *choices)))
        head = _load_head(given.pop("head", None), names, context)
        rules = tuple(_build(name, head, context) for name in names)
        deployment = cls(names, rules, given, head, context, looked_up)
        wrong = sorted(given.keys() - deployment.dials_of(0))
        if wrong:
            raise ValueError(no_dial(name, wrong, deployment.dials_of(0)))
        deployment.read(0, {name: number(name, value) for name, value in given.items()})
        return deployment

    def dials_of(self, index: int) -> frozenset[str]:
        """The dials that a rule has."""
        rule = self.rules[index]
        if isinstance(rule, DiversedVerifier):
            return frozenset(DIALS)
        return frozenset({"max_bias", "max_ratio"} if isinstance(rule, MixtureVerifier) else ())

    def read(self, index: int, values: Mapping[str, float], prefix: str = "") -> Asked:
        """A rule and dials of its, checked; where they come to the target's own law, that. A drop sets no dial yet.

        Args:
            prefix: of the names, where they are named. Raises ValueError.
        """
        if {"strictness", "max_drop"} <= values.keys():
            raise ValueError(
                f"`{prefix}strictness` and `{prefix}max_drop` are mutually exclusive: the drop selects the "
                "strictness that was certified for it."
            )
        checked = {name: check_range(prefix + name, value, 0.0, 1.0, DIALS[name]) for name, value in values.items()}
        if "max_drop" in checked:
            try:
                CertifiedVerifier(cast(DiversedHead, self.head), checked.pop("max_drop"))
            except ValueError as error:
                raise ValueError(f"`{prefix}max_drop`: {error}") from error
        if isinstance(self.rules[index], LosslessVerifier) or checked.get("strictness") == 1.0:
            return Asked()
        return Asked(index + 1, **checked)


def _check_drafting(speculative: Any) -> bool:
    """Whether drafts are looked up; refuses those that come from no law, and verification other than token by token.

    vLLM would go on without their laws, silently lossless.
    """
    if speculative is None:
        raise ValueError(
            "a rule decides about drafts, and this engine has none; add --speculative-config with a draft model."
        )
    method = speculative.method
    if speculative.rejection_sample_method != "standard":
        raise ValueError(
            "rules replace the law of the standard verification; got rejection_sample_method="
            f"{speculative.rejection_sample_method!r}. Leave it out of --speculative-config."
        )
    if method in _WITHOUT_LAWS:
        raise ValueError(
            f"speculative method {method!r} shows the sampler no law of its drafts; use a draft model, EAGLE, MTP or "
            "ngram."
        )
    if method not in _LOOKED_UP and speculative.draft_sample_method != "probabilistic":
        raise ValueError(
            f"draft_sample_method must be 'probabilistic', got {speculative.draft_sample_method!r}: drafts chosen "
            'greedily come from no law. Add "draft_sample_method": "probabilistic" to --speculative-config.'
        )
    return method in _LOOKED_UP


def _context(vllm_config: Any, looked_up: bool) -> DecodingContext:
    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    return DecodingContext(
        batch_size=1,
        num_prompts=1,
        vocab_size=model.get_vocab_size(),
        temperature=None,
        target_hidden_size=0,
        draft_hidden_size=None if looked_up else 0,
        target_name="",
        draft_name="",
        num_assistant_tokens=speculative.num_speculative_tokens,
    )


def _load_head(name: Any, rules: tuple[str, ...], context: DecodingContext) -> DiversedHead | None:
    """The head of "diversed", by the checks of the library; refuses one that nobody uses and one that sees hidden
    states."""
    if "diversed" not in rules:
        if name is not None:
            raise ValueError(f"a head belongs to the rule 'diversed', which is not among {', '.join(rules)}.")
        return None
    if not isinstance(name, str):
        raise ValueError(f"the rule 'diversed' needs `head`, a folder or a name on the Hub; got {name!r}.")
    head = load_head(name)
    if head.needs_hidden_states:
        raise ValueError(
            f"{name} reads hidden states (features={head.config.features!r}), which vLLM does not show its sampler; "
            "train a head with features='distribution'."
        )
    DiversedVerifier(head).check(context)
    return head


def _build(name: str, head: DiversedHead | None, context: DecodingContext) -> Verifier:
    """A rule by its name, "static:0.7"; refuses those that cannot be served."""
    kind = name.partition(":")[0]
    if kind in _NOT_SERVED:
        served = ", ".join(sorted(VERIFIERS.keys() - _NOT_SERVED.keys()))
        raise ValueError(f"rule {name!r} is not served by vLLM: {_NOT_SERVED[kind]}. Served are {served}.")
    rule = DiversedVerifier(ServedHead(head)) if name == "diversed" and head is not None else build_verifier(name)
    if rule.needs_draft_confidence and context.draft_hidden_size is None:
        raise ValueError(f"rule {name!r} reads how sure the draft is, and looked-up tokens do not say; use another.")
    if isinstance(rule, MixtureVerifier) and any(getattr(rule, limit) is not None for limit in LIMITS):
        raise ValueError(
            f"rule {name!r} brings bounds of its own; say `max_bias` or `max_ratio` beside the rule, or leave them to "
            "requests. vLLM's sampler has no place for a sum kept per sequence."
        )
    return rule


def number(name: str, value: Any) -> float:
    """A number that came as JSON. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"`{name}` must be a number, got {value!r:.200}.")
    return float(value)


def no_dial(rule: str, wrong: list[str], dials: frozenset[str], prefix: str = "") -> str:
    """What to say about dials that a rule does not have."""
    takes = ", ".join(prefix + name for name in DIALS if name in dials) or "none"
    return f"rule {rule!r} has no {', '.join(prefix + name for name in wrong)}; its dials: {takes}."
