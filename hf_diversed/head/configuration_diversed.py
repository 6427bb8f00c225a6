"""Configuration of a head: its architecture, and the pair, task and settings of its training."""

import math
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_diversed import support
from hf_diversed.provenance import weights_digest


logger = support.get_logger(__name__)

HEAD_TYPES = ("linear", "mlp")
FEATURES = ("hidden", "distribution", "both")
MAX_NUM_ASSISTANT_TOKENS = 64
# Entries that transformers writes to the config.json of every model.
_IGNORED = {*PreTrainedConfig().to_dict(), "name_or_path", "torch_dtype", "use_cache"} - {"architectures", "dtype"}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 1


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
        ValueError: if a value has a wrong type or is out of range, or the configuration is not that of a head.
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
        kwargs |= {"target_hidden_size": target_hidden_size, "draft_hidden_size": draft_hidden_size}
        model_type = kwargs.pop("model_type", self.model_type)
        if model_type != self.model_type:
            raise ValueError(
                f"not the configuration of a head: model_type must be {self.model_type!r}, got {model_type!r}."
            )
        names = DiversedHeadConfig.__annotations__
        settings = {name: kwargs.pop(name, getattr(type(self), name)) for name in names}
        # Other entries control transformers' loaders: quantizers, file names, and kernels, which are code of the Hub.
        super().__init__(**{name: kwargs.pop(name) for name in ("architectures", "dtype") if name in kwargs})
        if unknown := sorted(kwargs.keys() - _IGNORED):
            logger.warning(f"Unknown entries in the configuration of a head are ignored: {', '.join(unknown)}.")
        for name, value in settings.items():
            setattr(self, name, value)
        self.validate()

    def validate(self) -> None:
        """Raise ValueError if a value is not allowed; runs in the constructor and before saving."""
        super().validate()
        for names, allowed, is_allowed in (
            (("target_hidden_size", "draft_hidden_size", "intermediate_size"), "an integer >= 1", _is_count),
            (("vocab_size",), "an integer >= 1, or None", lambda value: value is None or _is_count(value)),
            (("head_type",), f"one of {', '.join(HEAD_TYPES)}", lambda value: value in HEAD_TYPES),
            (("features",), f"one of {', '.join(FEATURES)}", lambda value: value in FEATURES),
            (("token_features", "normalize"), "True or False", lambda value: isinstance(value, bool)),
            (
                ("num_assistant_tokens",),
                f"an integer from 1 to {MAX_NUM_ASSISTANT_TOKENS}, or None",
                lambda value: value is None or (_is_count(value) and value <= MAX_NUM_ASSISTANT_TOKENS),
            ),
            (
                ("training_temperature",),
                "a number >= 0, or None",
                lambda value: value is None or (_is_number(value) and 0 <= value < math.inf),
            ),
            (("strictness",), "a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1),
        ):
            for name in names:
                if not is_allowed(value := getattr(self, name)):
                    raise ValueError(f"{name} must be {allowed}, got {value!r}.")

    @classmethod
    def for_pair(cls, target: PreTrainedModel, draft: PreTrainedModel, **kwargs) -> "DiversedHeadConfig":
        """Return a configuration with sizes, names and digests of a pair; `kwargs` set the rest."""
        widths = support.hidden_width(target), support.hidden_width(draft)
        return cls(*widths, **(cls.about_pair(target, draft) | kwargs))

    @staticmethod
    def about_pair(target: PreTrainedModel, draft: PreTrainedModel) -> dict[str, Any]:
        """Return the settings that identify a pair: vocabulary size, names and digests."""
        return {
            "vocab_size": support.vocab_size(target),
            "base_model_name_or_path": support.model_name(target) or None,
            "base_model_digest": weights_digest(support.base_model(target)),
            "assistant_model_name_or_path": support.model_name(draft) or None,
            "assistant_model_digest": weights_digest(support.base_model(draft)),
        }
