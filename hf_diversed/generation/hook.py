"""The only file that touches `GenerationMixin`: it teaches `generate` the arguments `diversed_head=` and
`verifier=`."""

import copy
import functools
import inspect
import weakref
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, StoppingCriteriaList, StopStringCriteria

from hf_diversed import _compat
from hf_diversed.generation import checks
from hf_diversed.generation.decoding import diversed_decoding
from hf_diversed.head import DiversedHead, load_head
from hf_diversed.verifiers import DiversedVerifier, Verifier, build_verifier


@dataclass
class Options:
    """The arguments that the hook adds to `generate`."""

    diversed_head: "DiversedHead | str | None" = None
    verifier: Verifier | str | None = None
    diversed_quality: float | list[float] | torch.Tensor | None = None
    diversed_max_bias: float | list[float] | torch.Tensor | None = None
    output_token_records: bool | None = None

    @classmethod
    def pop_from(cls, kwargs: dict) -> "Options":
        return cls(**{name: kwargs.pop(name, None) for name in OPTION_NAMES})

    def given(self) -> list[str]:
        return [name for name in OPTION_NAMES if getattr(self, name) is not None]


OPTION_NAMES = tuple(item.name for item in fields(Options))


@dataclass
class Attachment:
    """A draft and a rule kept beside a model; a context manager that detaches on exit."""

    model_ref: "weakref.ref[PreTrainedModel]"
    assistant_model: PreTrainedModel
    options: Options
    num_assistant_tokens: int | None = None

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *exc_info) -> None:
        model = self.model_ref()
        if model is not None:
            detach(model)


_ATTACHED: "weakref.WeakKeyDictionary[torch.nn.Module, Attachment]" = weakref.WeakKeyDictionary()
_MARK = "_hf_diversed_original"


def attach(
    model: PreTrainedModel,
    assistant_model: PreTrainedModel,
    diversed_head: "DiversedHead | str | None" = None,
    *,
    verifier: Verifier | str | None = None,
    num_assistant_tokens: int | None = None,
    diversed_quality: float | None = None,
    diversed_max_bias: float | None = None,
) -> Attachment:
    """Make every later `model.generate(...)` decode with this draft and rule, for callers that cannot pass them.

    Nothing is stored on the model: `state_dict`, `save_pretrained`, `deepcopy` and pickle do not change. Arguments of
    a call win over what is attached; `diversed_quality` and `diversed_max_bias` may also come from the call's
    generation config.

    Example:
        ```python
        with hf_diversed.attach(model, draft, head):
            pipeline("text-generation", model=model, tokenizer=tokenizer)("Question: ...")
        ```
    """
    options = Options(diversed_head, verifier, diversed_quality, diversed_max_bias)
    if (diversed_head is None) == (verifier is None):
        raise ValueError("attach needs exactly one of diversed_head= and verifier=.")
    for candidate, role in ((model, "target"), (assistant_model, "draft")):
        checks.check_model(candidate, role)
    install_hook()
    attachment = Attachment(weakref.ref(model), assistant_model, options, num_assistant_tokens)
    _ATTACHED[_compat.base_model(model)] = attachment
    return attachment


def detach(model: PreTrainedModel) -> None:
    """Undo `attach`; does nothing if nothing is attached."""
    _ATTACHED.pop(_compat.base_model(model), None)


def install_hook() -> None:
    """Wrap `GenerationMixin.generate`, once. `import hf_diversed` does it unless HF_DIVERSED_NO_HOOK=1."""
    original = GenerationMixin.generate
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def generate(self, *args, **kwargs):
        attachment = _ATTACHED.get(self)
        if attachment is None and not any(kwargs.get(name) is not None for name in OPTION_NAMES):
            for name in OPTION_NAMES:
                kwargs.pop(name, None)
            return original(self, *args, **kwargs)
        return _generate_relaxed(original, self, attachment, args, kwargs)

    generate.__signature__ = _extended_signature(original)  # type: ignore[attr-defined]
    setattr(generate, _MARK, original)
    GenerationMixin.generate = generate


def uninstall_hook() -> None:
    """Give `GenerationMixin.generate` back; does nothing if the hook is not installed."""
    original = getattr(GenerationMixin.generate, _MARK, None)
    if original is not None:
        GenerationMixin.generate = original


def _extended_signature(original) -> inspect.Signature:
    signature = inspect.signature(original)
    *named, var_keyword = signature.parameters.values()
    added = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=item.type)
        for item in fields(Options)
    ]
    return signature.replace(parameters=[*named, *added, var_keyword])


def _generate_relaxed(original, model: PreTrainedModel, attachment: Attachment | None, args, kwargs):
    """Bind draft, rule and streamer into the loop and let upstream prepare everything else."""
    options = Options.pop_from(kwargs)
    arguments = inspect.signature(original).bind(model, *args, **kwargs).arguments
    extra = arguments.pop("kwargs", {})
    call = _Call(model, arguments, extra)
    draft = arguments.pop("assistant_model", None)
    if attachment is not None:
        draft = attachment.assistant_model if draft is None else draft
        options = _merged(options, attachment.options)
    if draft is None:
        raise ValueError(f"{', '.join(options.given())} needs a draft model to verify: pass assistant_model=.")
    checks.check_model(model, "target")
    checks.check_model(draft, "draft")
    call.refuse_other_modes()
    checks.check_tokenizers(extra.get("tokenizer"), extra.pop("assistant_tokenizer", None))
    verifier = resolve_verifier(
        options.diversed_head,
        options.verifier,
        quality=_first(options.diversed_quality, call.setting("diversed_quality")),
        max_bias=_first(options.diversed_max_bias, call.setting("diversed_max_bias")),
        device=model.device,
    )
    attached_length = None if attachment is None else attachment.num_assistant_tokens
    loop = functools.partial(
        diversed_decoding,
        assistant_model=draft,
        verifier=verifier,
        num_assistant_tokens=_first(
            extra.pop("num_assistant_tokens", None), attached_length, call.setting("num_assistant_tokens")
        ),
        output_token_records=bool(options.output_token_records),
        streamer=arguments.get("streamer"),
    )
    call.take_over_stop_strings()
    arguments["custom_generate"] = loop
    return original(**call.arguments, **extra)


class _Call:
    """One `generate` call as bound arguments, and where its settings may come from."""

    def __init__(self, model: PreTrainedModel, arguments: dict[str, Any], extra: dict[str, Any]):
        self.model, self.arguments, self.extra = model, arguments, extra

    def setting(self, name: str):
        """A value set by keyword, by the call's generation config or by the model's, in that order; or None."""
        configs = (self.arguments.get("generation_config"), self.model.generation_config)
        return _first(self.extra.get(name), *(_compat.config_entry(config, name) for config in configs))

    def refuse_other_modes(self) -> None:
        """What upstream would act on before it reaches the loop."""
        other_loop = self.arguments.get("custom_generate")
        if other_loop is not None and other_loop is not diversed_decoding:
            raise ValueError(
                "custom_generate cannot be combined with diversed_head= or verifier=; pass only one of them."
            )
        if self.setting("token_healing"):
            raise ValueError("token_healing rewrites the prompt behind the draft's back; heal the prompt beforehand.")
        if self.setting("cache_implementation") == "paged":
            raise ValueError('cache_implementation="paged" is continuous batching, which has no verifier; drop it.')

    def take_over_stop_strings(self) -> None:
        """Turn stop strings into a criterion here: upstream loses the tokenizer on the way to a custom loop."""
        stop_strings = self.setting("stop_strings")
        tokenizer = self.extra.pop("tokenizer", None)
        if stop_strings is None:
            return
        if tokenizer is None:
            raise ValueError("stop_strings need the tokenizer that spells them: pass tokenizer=.")
        criteria = StoppingCriteriaList(self.arguments.get("stopping_criteria") or [])
        criteria.append(StopStringCriteria(tokenizer, stop_strings))
        self.arguments["stopping_criteria"] = criteria
        self.extra.pop("stop_strings", None)
        config = self.arguments.get("generation_config")
        if config is not None and _compat.config_entry(config, "stop_strings") is not None:
            self.arguments["generation_config"] = _without_stop_strings(config)
        if _compat.config_entry(self.model.generation_config, "stop_strings") is not None:
            # Upstream re-reads the model's own config. A shallow twin shares every weight and leaves the model alone.
            twin = copy.copy(self.model)
            twin.generation_config = _without_stop_strings(self.model.generation_config)
            self.arguments["self"] = twin


def resolve_verifier(
    diversed_head: "DiversedHead | str | None",
    verifier: Verifier | str | None,
    quality: float | list[float] | torch.Tensor | None = None,
    max_bias: float | list[float] | torch.Tensor | None = None,
    device: torch.device | None = None,
) -> Verifier | None:
    """Build the rule that `generate` was asked for. Raises ValueError on contradictions and unknown names."""
    if diversed_head is not None and verifier is not None:
        raise ValueError("diversed_head= and verifier= both choose the rule; pass only one of them.")
    if diversed_head is not None:
        head = load_head(diversed_head, device) if isinstance(diversed_head, str) else diversed_head
        return DiversedVerifier(head, quality=0.5 if quality is None else quality, max_bias=max_bias)
    if quality is not None or max_bias is not None:
        raise ValueError(
            "diversed_quality and diversed_max_bias act on a head: pass diversed_head=, or build "
            "DiversedVerifier(head, quality=..., max_bias=...) yourself."
        )
    if isinstance(verifier, str):
        return build_verifier(verifier)
    return verifier


def _merged(options: Options, attached: Options) -> Options:
    """The call's options over the attached ones; a rule named by the call replaces the attached rule altogether."""
    if options.diversed_head is None and options.verifier is None:
        options.diversed_head, options.verifier = attached.diversed_head, attached.verifier
    for name in ("diversed_quality", "diversed_max_bias"):
        if getattr(options, name) is None and options.diversed_head is not None:
            setattr(options, name, getattr(attached, name))
    return options


def _without_stop_strings(config: GenerationConfig) -> GenerationConfig:
    config = copy.deepcopy(config)
    config.stop_strings = None
    return config


def _first(*values):
    return next((value for value in values if value is not None), None)
