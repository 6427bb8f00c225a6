"""Configuration of a head: its architecture, and the pair, task and settings of its training."""

import math
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_diversed import _compat, model_facts
from hf_diversed.provenance import weights_digest


logger = _compat.get_logger(__name__)

HEAD_TYPES = ("linear", "mlp")
FEATURES = ("hidden", "distribution", "both")
MAX_NUM_ASSISTANT_TOKENS = 64
_DTYPES = ("float32", "float16", "bfloat16", "float64")
_TORCH_DTYPES = tuple(getattr(torch, name) for name in _DTYPES)

Rule = tuple[str, Callable[[Any], bool]]  # description of the allowed values, and a predicate


def _integer(most: int, optional: bool = False) -> Rule:
    words = f"an integer from 1 to {most}{', or None' if optional else ''}"
    return words, lambda value: (optional and value is None) or (type(value) is int and 1 <= value <= most)


def _choice(*choices: Any) -> Rule:
    words = f"one of {', '.join(map(repr, choices))}"
    return words, lambda value: any(type(value) is type(choice) and value == choice for choice in choices)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(low: float, high: float, optional: bool = False) -> Rule:
    words = f"a number from {low:g} to {high:g}{', or None' if optional else ''}"
    return words, lambda value: (optional and value is None) or (_is_number(value) and low <= value <= high)


_TEMPERATURE = "a number >= 0", lambda value: _is_number(value) and 0 <= value < math.inf
_WIDTH, _TEXT = _integer(2**17), ("a string or None", lambda value: value is None or isinstance(value, str))
_COUNT, _GAMMA = _integer(2**31), _integer(MAX_NUM_ASSISTANT_TOKENS)
# Fields of `calibration`, written by `hf-diversed calibrate`.
CALIBRATION: dict[str, Rule] = {
    "strictness": _number(0, 1),
    "max_quality_drop": _number(0, 1),
    "confidence": _number(0, 1),
    "drop": _number(-1, 1),
    "acceptance_rate": _number(0, 1, optional=True),
    "task": _TEXT,
    "metric": _TEXT,
    "num_prompts": _COUNT,
    "samples_per_prompt": _COUNT,
    "temperature": _TEMPERATURE,
    "top_k": ("an integer from 0", lambda value: type(value) is int and 0 <= value < 2**31),
    "top_p": _number(0, 1),
    "num_assistant_tokens": _GAMMA,
    "max_new_tokens": _COUNT,
}


def _is_calibration(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and value.keys() == CALIBRATION.keys()
        and all(CALIBRATION[name][1](item) for name, item in value.items())
    )


# All allowed entries. Configurations on the Hub are untrusted, so no others are passed to transformers.
RULES: dict[str, Rule] = {
    "target_hidden_size": _WIDTH,
    "draft_hidden_size": _WIDTH,
    "head_type": _choice(*HEAD_TYPES),
    "features": _choice(*FEATURES),
    "token_features": _choice(True, False),
    "intermediate_size": _integer(2**14),
    "normalize": _choice(True, False),
    "mixing": _choice("probs"),  # stored in some heads; nothing reads it
    "task": _TEXT,
    "num_assistant_tokens": _integer(MAX_NUM_ASSISTANT_TOKENS, optional=True),
    "training_temperature": (
        f"{_TEMPERATURE[0]}, or None",
        lambda value: value is None or _TEMPERATURE[1](value),
    ),
    "strictness": _number(0, 1),
    "calibration": (
        f"None, or what `hf-diversed calibrate` writes ({', '.join(CALIBRATION)})",
        _is_calibration,
    ),
    "base_model_name_or_path": _TEXT,
    "base_model_revision": _TEXT,
    "base_model_digest": _TEXT,
    "assistant_model_name_or_path": _TEXT,
    "assistant_model_revision": _TEXT,
    "assistant_model_digest": _TEXT,
    "vocab_size": _integer(2**24, optional=True),
    "dtype": (
        f"one of {', '.join(_DTYPES)}, or None",
        lambda value: value is None or value in _DTYPES + _TORCH_DTYPES,
    ),
    "architectures": ("a list or None", lambda value: value is None or isinstance(value, list)),
}
# Entries that transformers adds; ignored without a warning.
_IGNORED = {*PreTrainedConfig().to_dict(), "name_or_path", "torch_dtype", "use_cache"} - RULES.keys()


LOOKED_UP = "prompt lookup"  # replaces the name of the draft model for prompt lookup


class DiversedHeadConfig(PreTrainedConfig):
    """Configuration of a `DiversedHead`.

    Args:
        target_hidden_size: input width of the target's output embedding (`get_output_embeddings().weight.shape[1]`).
        draft_hidden_size: the same for the draft model.
        head_type: "linear" or "mlp" (one hidden layer of `intermediate_size` GELU units).
        features: inputs computed from the prefix: "hidden" (last hidden states of both models), "distribution" (eight
            statistics of p and q, see `distribution_features`; needs no hidden states) or "both".
        token_features: also use five features of the draft token (see `token_features`), so that the weight depends on
            the token.
        normalize: normalise each hidden state to zero mean and unit variance; False for converted heads.
        task: task of the training.
        num_assistant_tokens: draft tokens per round in training, 1 to 64; the default for generation.
        training_temperature: temperature of the rollouts, 0 for greedy; None if unknown.
        base_model_name_or_path, base_model_revision: the target model. assistant_model_name_or_path,
            assistant_model_revision: the draft model; "prompt lookup" without a draft model.
        base_model_digest, assistant_model_digest: `weights_digest` of the models in training, with which calls compare
            their own; None if unknown.
        vocab_size: of the target model; None if unknown.
        strictness: used when a call passes no `diversed_strictness`, 0 to 1; 0.5 is the head as trained.
        calibration: result of `hf-diversed calibrate`, which also sets `strictness`: that strictness, the bound on its
            drop in quality (`max_quality_drop`) with its confidence, the measured drop, and the settings. None for a
            head that is not calibrated.
        kwargs: `dtype` and `architectures`, as in `PreTrainedConfig`; unknown names are dropped with a warning.

    Raises:
        ValueError: if a value has a wrong type or is out of range, also when it is assigned later.
    """

    model_type = "diversed_head"

    target_hidden_size: int = 1
    draft_hidden_size: int = 1
    head_type: str = "linear"
    features: str = "hidden"
    token_features: bool = False
    intermediate_size: int = 64
    normalize: bool = True
    task: str | None = None
    num_assistant_tokens: int | None = None
    training_temperature: float | None = None
    base_model_name_or_path: str | None = None
    base_model_revision: str | None = None
    base_model_digest: str | None = None
    assistant_model_name_or_path: str | None = None
    assistant_model_revision: str | None = None
    assistant_model_digest: str | None = None
    vocab_size: int | None = None
    strictness: float = 0.5
    calibration: dict[str, Any] | None = None

    def __init__(self, target_hidden_size: int = 1, draft_hidden_size: int = 1, **kwargs):
        # Defined here because the constructor that transformers generates takes only keyword arguments.
        sizes = {"target_hidden_size": target_hidden_size, "draft_hidden_size": draft_hidden_size}
        names = DiversedHeadConfig.__annotations__
        settings = {name: kwargs.pop(name, getattr(type(self), name)) for name in names if name not in sizes}
        if unknown := sorted(kwargs.keys() - RULES.keys() - _IGNORED):
            logger.warning(
                "Unknown entries in the configuration of a head are ignored: %.500s.", ", ".join(map(repr, unknown))
            )
        super().__init__(**{name: value for name, value in kwargs.items() if name in RULES})
        for name, value in (sizes | settings).items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RULES:
            allowed, is_allowed = RULES[name]
            if not is_allowed(value):
                raise ValueError(f"{name} must be {allowed}, got {value!r:.200}.")
        super().__setattr__(name, value)

    @classmethod
    def for_pair(cls, target: PreTrainedModel, draft: PreTrainedModel | None, **kwargs) -> "DiversedHeadConfig":
        """Return a configuration with sizes, names and digests of a pair; `kwargs` set the rest.

        Args:
            draft: the draft model; None for prompt lookup.
        """
        draft_width = cls.draft_hidden_size if draft is None else model_facts.hidden_width(draft)
        return cls(model_facts.hidden_width(target), draft_width, **(cls.about_pair(target, draft) | kwargs))

    @staticmethod
    def about_pair(target: PreTrainedModel, draft: PreTrainedModel | None) -> dict[str, Any]:
        """Return the settings that identify a pair: vocabulary size, names and digests."""
        return {
            "vocab_size": model_facts.vocab_size(target),
            "base_model_name_or_path": model_facts.model_name(target) or None,
            "base_model_digest": weights_digest(model_facts.base_model(target)),
            "assistant_model_name_or_path": LOOKED_UP if draft is None else model_facts.model_name(draft) or None,
            "assistant_model_digest": None if draft is None else weights_digest(model_facts.base_model(draft)),
        }
