"""Configuration of a head: its shape, and the pair, task and settings it was made for."""

from transformers import PreTrainedConfig, PreTrainedModel

from hf_diversed import _compat


HEAD_TYPES = ("linear", "mlp")
FEATURES = ("hidden", "distribution", "both")


class DiversedHeadConfig(PreTrainedConfig):
    """Describes a `DiversedHead`.

    Args:
        target_hidden_size: width of what the target's output embedding sees
            (`get_output_embeddings().weight.shape[1]`).
        draft_hidden_size: the same for the draft.
        head_type: "linear" or "mlp" (one hidden layer of `intermediate_size` GELU units).
        features: "hidden" (both models' last hidden states), "distribution" (eight figures on p and q, see
            `distribution_features`; needs no hidden states) or "both".
        normalize: bring each hidden state to zero mean and unit variance before it enters; off for converted heads.
        task: what the head was trained on. `mixing`: what it mixes; "probs" is the only value.
        num_assistant_tokens: draft length it was trained with, the default for generation.
        training_temperature: temperature of its rollouts, 0 for greedy; None if unknown.
        base_model_name_or_path, base_model_revision: the target. assistant_model_name_or_path,
            assistant_model_revision: the draft.
        vocab_size: of the target; None if unknown.

    Raises:
        ValueError: on a width or head size below 1, or an unknown `head_type`, `features` or `mixing`.
    """

    model_type = "diversed_head"

    target_hidden_size: int = 1
    draft_hidden_size: int = 1
    head_type: str = "linear"
    features: str = "hidden"
    intermediate_size: int = 64
    normalize: bool = True
    mixing: str = "probs"
    task: str | None = None
    num_assistant_tokens: int | None = None
    training_temperature: float | None = None
    base_model_name_or_path: str | None = None
    base_model_revision: str | None = None
    assistant_model_name_or_path: str | None = None
    assistant_model_revision: str | None = None
    vocab_size: int | None = None

    def __init__(self, target_hidden_size: int = 1, draft_hidden_size: int = 1, **kwargs):
        # transformers would generate a constructor that takes keywords only; the two sizes may come by position.
        sizes = {"target_hidden_size": target_hidden_size, "draft_hidden_size": draft_hidden_size}
        names = DiversedHeadConfig.__annotations__
        settings = {name: kwargs.pop(name, getattr(type(self), name)) for name in names if name not in sizes}
        super().__init__(**kwargs)
        for name, value in (sizes | settings).items():
            setattr(self, name, value)
        _check_choice("head_type", self.head_type, HEAD_TYPES)
        _check_choice("features", self.features, FEATURES)
        _check_choice("mixing", self.mixing, ("probs",))
        for name in (*sizes, "intermediate_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}.")

    @classmethod
    def for_pair(cls, target: PreTrainedModel, draft: PreTrainedModel, **kwargs) -> "DiversedHeadConfig":
        """Return the configuration that fits a pair: its widths, vocabulary and names; `kwargs` set the rest."""
        about_pair = {
            "vocab_size": _compat.vocab_size(target),
            "base_model_name_or_path": _compat.model_name(target) or None,
            "assistant_model_name_or_path": _compat.model_name(draft) or None,
        }
        return cls(_compat.hidden_width(target), _compat.hidden_width(draft), **(about_pair | kwargs))


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")
