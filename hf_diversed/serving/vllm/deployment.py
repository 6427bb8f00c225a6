"""What a deployment serves: its verifiers, their head, and the settings of requests.

Reads vLLM's configuration and sampling parameters by field name and imports nothing of vLLM.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from hf_diversed.blocks import DecodingContext
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.serving.vllm.logits import RequestSettings
from hf_diversed.verifiers import (
    VERIFIERS,
    DiversedVerifier,
    LosslessVerifier,
    Verifier,
    base,
    build_verifier,
)
from hf_diversed.verifiers.base import check_range
from hf_diversed.verifiers.mixture import MixtureVerifier
from hf_diversed.verifiers.names import DIVERSED, LOSSLESS, base_name


KEY = "hf_diversed"  # in --additional-config
PREFIX = "diversed_"  # of the plugin's fields in `vllm_xargs`
logger = logging.getLogger("vllm.hf_diversed")

# Verifiers that read more than one position, or what vLLM's sampler does not receive.
_NOT_SERVED = {
    "spec_cascade": "it reads the draft model's raw logits, which vLLM does not keep",
    "fly": "it reads the draft tokens after a rejected one, and vLLM verifies each token independently",
    "block": "it verifies whole blocks, and vLLM verifies each token independently; for lossless decoding vLLM has a "
    "block verification of its own",
    "phase": "it reads the text so far, which vLLM's sampler does not receive",
}
# Methods whose draft tokens follow from the text so far, and methods that sample them if `draft_sample_method` is
# "probabilistic". Draft tokens of other methods may be random without a distribution.
_DETERMINISTIC = ("ngram", "ngram_gpu", "suffix", "medusa")
_SAMPLING = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark")
SETTINGS = base.SETTINGS
_FIELDS = ("verifier", *SETTINGS)  # of a request
_KEYS = ("verifier", "head", "choices", *SETTINGS)


def read_config(additional_config: Any) -> dict[str, Any] | None:
    """Return the object below "hf_diversed" of `--additional-config`, or None if it is missing.

    Raises:
        ValueError: if it is not a JSON object, or holds an unknown key.
    """
    found = additional_config.get(KEY) if isinstance(additional_config, Mapping) else None
    if found is None:
        return None
    if not isinstance(found, Mapping) or (unknown := sorted(found.keys() - set(_KEYS))):
        wrong = f"{', '.join(unknown)} in it" if isinstance(found, Mapping) else repr(found)
        raise ValueError(
            f'"{KEY}" of --additional-config must be an object with some of {", ".join(_KEYS)}; got {wrong:.200}.'
        )
    return dict(found)


@dataclass(frozen=True, eq=False)
class Deployment:
    """The verifiers of one engine, and the defaults of its requests.

    Attributes:
        names: the names by which requests choose verifiers, with "lossless"; the first is the default.
        verifiers: in the order of `names`.
        defaults: settings of requests that set none of their own: some of strictness, max_bias, max_ratio.
        head: the head of "diversed", if that is among the verifiers.
        one_hot: draft tokens are deterministic, so their distributions are one-hot and vLLM stores none.
        pads: runner V2 repeats the last token where a lookup finds no draft token.
    """

    names: tuple[str, ...]
    verifiers: tuple[Verifier, ...]
    defaults: Mapping[str, float]
    head: DiversedHead | None
    one_hot: bool
    pads: bool = False

    @classmethod
    def of(cls, vllm_config: Any) -> "Deployment | None":
        """Return the deployment of an engine's configuration, or None if it names none.

        Raises:
            ValueError: for verifiers and heads that cannot be served, settings out of range, and speculative
                configurations that are not served; each with what to do.
        """
        given = read_config(vllm_config.additional_config)
        if given is None:
            return None
        one_hot = _check_drafting(vllm_config.speculative_config)
        vocab_size = vllm_config.model_config.get_vocab_size()
        deployment = replace(
            cls.build(given, one_hot), pads=vllm_config.speculative_config.method in ("ngram", "ngram_gpu")
        )
        if deployment.head is not None:
            DiversedVerifier(deployment.head).check(_context(vocab_size, one_hot))
        return deployment

    @classmethod
    def build(cls, given: Mapping[str, Any], one_hot: bool = False) -> "Deployment":
        """Return the deployment with given settings, which is not yet compared with the models.

        Args:
            given: some of the keys verifier, head, choices, strictness, max_bias, max_ratio.

        Raises:
            ValueError: as `of`.
        """
        given = dict(given)
        verifier, choices = given.pop("verifier", DIVERSED), given.pop("choices", ())
        names = tuple(dict.fromkeys((verifier, *choices, LOSSLESS)))
        head = _load_head(given.pop("head", None), names)
        verifiers = tuple(_build(name, head, one_hot) for name in names)
        deployment = cls(names, verifiers, given, head, one_hot)
        deployment._read(0, given)
        return deployment

    def to(self, device: torch.device) -> None:
        """Move the verifiers' heads to the device that samples."""
        for verifier in self.verifiers:
            for part in verifier.components():
                if isinstance(part, torch.nn.Module):
                    part.to(device)

    def settings_of(self, index: int) -> frozenset[str]:
        """Return the names of the settings that a verifier has."""
        return frozenset(SETTINGS.keys() & self.verifiers[index].row_settings)

    def request(self, params: Any) -> RequestSettings:
        """Return the settings of a request from its vLLM `SamplingParams`.

        Raises:
            ValueError: for unknown fields and values out of range; raised before the request runs, because an
                exception inside a sampler ends the engine.
        """
        values = _fields(params.extra_args or {})
        name = values.pop("verifier", self.names[0])
        if name not in self.names:
            raise ValueError(
                f"`{PREFIX}verifier` must be one of {', '.join(self.names)}, got {name!r:.200}; add others "
                "to the deployment's `choices`."
            )
        index = self.names.index(name)
        known = self.settings_of(index)
        defaults = {setting: value for setting, value in self.defaults.items() if setting in known}
        return self._read(index, defaults | values, PREFIX).at(float(params.temperature))

    def request_or_lossless(self, params: Any) -> RequestSettings:
        """Return `request`, or lossless settings for what it refuses, so that the engine goes on."""
        try:
            return self.request(params)
        except ValueError as error:
            logger.error("hf_diversed: a request that was not checked at admission decodes losslessly: %s", error)
            return RequestSettings()

    def _read(self, index: int, values: Mapping[str, Any], prefix: str = "") -> RequestSettings:
        """Return checked settings for a verifier; lossless ones if they amount to that. Errors name settings with a
        prefix. The default strictness is that of the head."""
        known = self.settings_of(index)
        if wrong := sorted(values.keys() - known):
            takes = ", ".join(prefix + name for name in SETTINGS if name in known) or "none"
            raise ValueError(
                f"verifier {self.names[index]!r} has no {', '.join(prefix + name for name in wrong)}; its settings: "
                f"{takes}."
            )
        if "strictness" in known and self.head is not None:
            values = {"strictness": self.head.config.strictness} | dict(values)
        checked = {name: _in_range(prefix + name, value, *SETTINGS[name]) for name, value in values.items()}
        if isinstance(self.verifiers[index], LosslessVerifier) or checked.get("strictness") == 1.0:
            return RequestSettings()
        return RequestSettings(index + 1, **checked)


def _fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plugin's fields of `vllm_xargs` without the prefix; refuse unknown and unprefixed ones."""
    ours = {}
    for name, value in extra.items():
        plain = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and plain in _FIELDS:
            ours[plain] = value
        elif name in _FIELDS or name.lower().replace("-", "_").startswith(PREFIX):
            allowed = ", ".join(PREFIX + field for field in _FIELDS)
            raise ValueError(f"`{name}` is not a field of `vllm_xargs`. Allowed: {allowed}.")
    return ours


def _in_range(name: str, value: Any, low: float, high: float, meaning: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"`{name}` must be a number in [{low:g}, {high:g}], got {value!r:.200}. {meaning}")
    return check_range(name, float(value), low, high, meaning)


def _check_drafting(speculative: Any) -> bool:
    """Return whether draft tokens are one-hot; raise ValueError for speculative configurations that are not served.

    A draft token that is chosen without random numbers has a one-hot distribution given everything before it: the
    text, the models' hidden states, and where the round began. vLLM's adaptive verification is supported: it drops
    draft tokens based on distributions, not on the sampled tokens, so it does not bias what is emitted.
    """
    if speculative is None:
        raise ValueError(
            "a verifier needs draft tokens; add --speculative-config with a draft model, MTP or n-gram lookup."
        )
    method = speculative.method
    if speculative.rejection_sample_method != "standard":
        raise ValueError(
            "hf_diversed replaces the standard verification only; got rejection_sample_method="
            f"{speculative.rejection_sample_method!r}. Leave it out of --speculative-config."
        )
    if method not in (*_DETERMINISTIC, *_SAMPLING):
        raise ValueError(
            f"speculative method {method!r} is not served: the distribution of its draft tokens is not known. Served "
            f"are {', '.join(sorted((*_DETERMINISTIC, *_SAMPLING)))}."
        )
    return method in _DETERMINISTIC or speculative.draft_sample_method == "greedy"


def _context(vocab_size: int, one_hot: bool) -> DecodingContext:
    return DecodingContext(
        batch_size=1,
        num_prompts=1,
        vocab_size=vocab_size,
        temperature=None,
        target_hidden_size=0,
        draft_hidden_size=None if one_hot else 0,
        target_name="",
        draft_name="",
    )


def _load_head(name: Any, verifiers: tuple[str, ...]) -> DiversedHead | None:
    """Return the head of "diversed"; refuse one that no verifier uses and one that reads hidden states."""
    if DIVERSED not in verifiers:
        if name is not None:
            raise ValueError(f"`head` belongs to the verifier 'diversed', which is not among {', '.join(verifiers)}.")
        return None
    if not isinstance(name, str):
        raise ValueError(f"the verifier 'diversed' needs `head`, a folder or a name on the Hub; got {name!r}.")
    head = load_head(name)
    if head.needs_hidden_states:
        raise ValueError(
            f"{name} reads hidden states (features={head.config.features!r}), which vLLM's sampler does not receive; "
            "train a head with features='distribution'."
        )
    return head


def _build(name: str, head: DiversedHead | None, one_hot: bool) -> Verifier:
    """Return a verifier by its name, "static:0.7"; refuse those that cannot be served."""
    kind = base_name(name)
    if kind in _NOT_SERVED:
        served = ", ".join(sorted(VERIFIERS.keys() - _NOT_SERVED.keys()))
        raise ValueError(f"verifier {name!r} is not served by vLLM: {_NOT_SERVED[kind]}. Served are {served}.")
    verifier = DiversedVerifier(head) if name == DIVERSED and head is not None else build_verifier(name)
    if verifier.needs_draft_confidence and one_hot:
        raise ValueError(
            f"verifier {name!r} reads the draft model's confidence, which greedy and looked-up draft tokens do not "
            'have; use another, or a draft model with "draft_sample_method": "probabilistic".'
        )
    if isinstance(verifier, MixtureVerifier) and any(getattr(verifier, limit) is not None for limit in base.LIMITS):
        raise ValueError(
            f"verifier {name!r} has bounds in its name; set `max_bias` or `max_ratio` beside the "
            "verifier, or leave them to requests."
        )
    return verifier
