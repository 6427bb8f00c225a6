"""The arguments of a `generate` call, after the precedence of their sources has been resolved."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from hf_diversed import support
from hf_diversed.generation.options import ARGUMENTS, Options
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.sampling import RandomSource
from hf_diversed.verifiers import DiversedVerifier, Verifier, build_verifier


# Sources of draft tokens other than a draft model.
DRAFT_MODES = ("prompt_lookup_num_tokens", "use_mtp")
# Settings of the length of draft blocks, besides the number of draft tokens.
STOPPING_SETTINGS = ("num_assistant_tokens_schedule", "assistant_confidence_threshold")


@dataclass(frozen=True, eq=False)
class Request:
    """One call that `generate` has prepared: processors, criteria and configuration are final.

    The attributes are the arguments of `diversed_decoding`.
    """

    model: PreTrainedModel
    assistant_model: PreTrainedModel | None
    verifier: Verifier | None
    input_ids: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    model_kwargs: dict[str, Any]
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None
    output_token_records: bool = False
    streamer: BaseStreamer | None = None
    random_source: RandomSource | None = None
    candidate_generator: CandidateGenerator | list[CandidateGenerator] | None = None

    @property
    def own_generators(self) -> list[CandidateGenerator]:
        """The caller's candidate generators, one per row; empty without them."""
        own = self.candidate_generator
        if own is None:
            return []
        return list(own) if isinstance(own, (list, tuple)) else [own]


@dataclass(frozen=True, eq=False)
class AttachedOptions:
    """Draft model and options attached to a model, see `attach`."""

    assistant_model: PreTrainedModel
    options: Options
    num_assistant_tokens: int | None


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments of one `generate` call before upstream prepares it, and the sources of its settings.

    Precedence: keyword argument, generation config of the call, attachment, generation config of the model.

    Attributes:
        named: arguments of upstream's signature. extra: all others.
    """

    model: PreTrainedModel
    named: dict[str, Any]
    extra: dict[str, Any]
    attached: AttachedOptions | None

    def call_setting(self, name: str):
        """Return a setting from the keywords of the call or its generation config; None if neither has it.

        As in upstream, a keyword of None overrides all configurations.
        """
        if name in self.extra:
            return self.extra[name]
        return support.config_entry(self.named.get("generation_config"), name)

    def setting(self, name: str):
        """Return `call_setting`, with the generation config of the model as fallback."""
        if name in self.extra:
            return self.extra[name]
        return _first(self.call_setting(name), support.config_entry(self.model.generation_config, name))

    def drafting(self, candidate_generator: object) -> tuple[PreTrainedModel | None, int | None]:
        """Return the draft model, None for other sources, and gamma, None if unset.

        The attachment supplies them unless the call itself selects another source.

        Args:
            candidate_generator: of the call.
        """
        draft, length = self.named.get("assistant_model"), self.call_setting("num_assistant_tokens")
        if candidate_generator is not None:
            return draft, self.setting("num_assistant_tokens")
        if self.attached is not None and not any(is_set(self.call_setting(mode)) for mode in DRAFT_MODES):
            draft = _first(draft, self.attached.assistant_model)
            length = _first(length, self.attached.num_assistant_tokens)
        if draft is None and not any(is_set(self.setting(mode)) for mode in DRAFT_MODES):
            raise ValueError(
                "diversed_head= and verifier= need draft tokens to verify: pass assistant_model= as well (or "
                "prompt_lookup_num_tokens=, use_mtp=True or candidate_generator=)."
            )
        return draft, _first(length, self.setting("num_assistant_tokens"))

    def verifier(self, options: Options) -> Verifier | None:
        """Return the verifier of the call, or the attached one. Settings from configs apply to heads only."""
        attached = Options() if self.attached is None else self.attached.options
        chosen = options if options.names_verifier() else attached
        sources: list[Callable[[str], Any]] = [lambda name: getattr(options, name)]
        if chosen.diversed_head is not None:
            attached_settings = attached if chosen is attached else Options()
            sources += [self.call_setting, lambda name: getattr(attached_settings, name), self.setting]
        settings, device = _first_settings(sources), support.device(self.model)
        return resolve_verifier(chosen.diversed_head, chosen.verifier, device, **settings)


def _first_settings(sources: list[Callable[[str], Any]]) -> dict[str, Any]:
    """Return each setting of a head from the first source that has it."""
    settings: dict[str, Any] = {}
    for source in sources:
        found = {setting: source(argument) for setting, argument in ARGUMENTS.items() if setting not in settings}
        settings |= {setting: value for setting, value in found.items() if value is not None}
    return settings


def is_set(value: object) -> bool:
    """Return whether a setting is given. None and False are not; 0 is, and a later check raises an error."""
    return value is not None and value is not False


def _first(*values):
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)


def check_head_and_verifier(diversed_head: object, verifier: object) -> None:
    """Raise TypeError unless what is given is a head (or its name) or a verifier. None is not checked."""
    if isinstance(diversed_head, type):
        raise TypeError(
            f"diversed_head must be a head, got the class {diversed_head.__name__}; pass an instance, a folder or a "
            "Hub id."
        )
    if isinstance(diversed_head, Verifier):
        raise TypeError(
            f"diversed_head must be a head, got the verifier {type(diversed_head).__name__}; pass it as verifier=."
        )
    if isinstance(verifier, Verifier) or verifier is None:
        return
    if isinstance(verifier, type):
        raise TypeError(
            f"verifier must be an instance, got the class {verifier.__name__}; create one with "
            f'{verifier.__name__}(...), or pass a name such as "lenience:0.3".'
        )
    if getattr(getattr(verifier, "config", None), "model_type", None) == "diversed_head":
        raise TypeError("verifier must be a Verifier, got a DiversedHead; pass it as diversed_head=.")
    raise TypeError(
        f'verifier must be a Verifier or a name such as "lenience:0.3", got {type(verifier).__name__}; see '
        "hf_diversed.VERIFIERS."
    )


def resolve_verifier(
    diversed_head: "DiversedHead | str | os.PathLike | None",
    verifier: Verifier | str | None,
    device: torch.device | None = None,
    **settings: float | list[float] | torch.Tensor | None,
) -> Verifier | None:
    """Build the requested verifier.

    Args:
        diversed_head: head, or its folder or Hub id. verifier: verifier, or its name; exclusive with `diversed_head`.
        device: of the head, where it is loaded by name.
        settings: arguments of `DiversedVerifier`, None for its defaults.

    Raises:
        TypeError: for anything else than a head or a verifier.
        ValueError: for conflicting arguments, unknown names, and settings without a head.
    """
    if diversed_head is not None and verifier is not None:
        raise ValueError("diversed_head= and verifier= are mutually exclusive; pass only one of them.")
    if not isinstance(verifier, str):
        check_head_and_verifier(diversed_head, verifier)
    given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if diversed_head is not None:
        if isinstance(diversed_head, (str, os.PathLike)):
            diversed_head = load_head(os.fspath(diversed_head), device)
        return DiversedVerifier(diversed_head, **given)
    if given:
        raise ValueError(
            f"{' and '.join(ARGUMENTS[name] for name in given)} can only be used with a head: pass "
            "diversed_head=. Bounds of a fixed weight are in its name: "
            'verifier="static:weight:max_bias:max_ratio".'
        )
    if isinstance(verifier, str):
        return build_verifier(verifier)
    return verifier
