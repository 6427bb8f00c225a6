"""Settings of a training run, in TRL's vocabulary where it has a word."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from transformers import TrainingArguments

from hf_diversed.head.configuration_diversed import FEATURES, HEAD_TYPES
from hf_diversed.verifiers.base import check_range


MIN_WINDOW = 2000


@dataclass
class DiversedConfig(TrainingArguments):
    """`TrainingArguments` plus what rollouts, objective and constraint need. One step is one update of the head;
    `num_iterations` steps share the rollouts drawn at the first of them.

    The run is constrained unless `acceptance_coef` is given: the coefficient c of acceptance adapts so that the
    reward stays within `max_quality_drop` of the target's own on the same prompts.

    Raises:
        ValueError: on a value out of range, on a batch that does not hold whole groups, on a save or evaluation that
            would fall between two rollouts, on evaluations without a checkpoint to load the best head from, and on
            gradient accumulation.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    per_device_train_batch_size: int = field(default=256, metadata={"help": "Rollouts per device and update."})
    generation_batch_size: int = field(default=128, metadata={"help": "Rows decoded together, in training."})
    per_device_eval_batch_size: int = field(default=128, metadata={"help": "Rows decoded together, in evaluation."})
    num_generations: int = field(default=4, metadata={"help": "Rollouts per prompt."})
    num_iterations: int = field(default=4, metadata={"help": "Updates per rollout."})
    max_steps: int = field(default=160, metadata={"help": "Updates in all; rollouts are max_steps / num_iterations."})
    learning_rate: float = field(default=0.2, metadata={"help": "Of Adam, on the head's few parameters."})
    lr_scheduler_type: str = field(default="linear", metadata={"help": "As in transformers."})
    warmup_steps: float = field(default=16, metadata={"help": "Adam's first steps follow the noise of one batch."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "0 clips no gradients; ratios are clipped instead."})

    num_assistant_tokens: int = field(default=5, metadata={"help": "Drafts per round (gamma)."})
    temperature: float = field(default=1.0, metadata={"help": "Of the rollouts; greedy ones have no score function."})
    top_k: int = field(default=0, metadata={"help": "Of the rollouts; 0 keeps the whole vocabulary."})
    top_p: float = field(default=1.0, metadata={"help": "Of the rollouts; 1 keeps the whole vocabulary."})
    max_completion_length: int = field(default=128, metadata={"help": "Longest rollout in tokens."})

    head_features: str = field(default="distribution", metadata={"help": f"What a new head sees: {FEATURES}."})
    head_type: str = field(default="linear", metadata={"help": f"Shape of a new head: {HEAD_TYPES}."})
    initial_weight: float = field(default=0.5, metadata={"help": "Weight on the target that a new head starts from."})

    acceptance_coef: float | None = field(
        default=None, metadata={"help": "Reward that full acceptance is worth; None adapts it to the constraint."}
    )
    max_quality_drop: float = field(default=0.01, metadata={"help": "Absolute drop below the target's own reward."})
    acceptance_coef_init: float = field(default=0.2, metadata={"help": "c at the start of a constrained run."})
    acceptance_coef_min: float = field(default=0.05, metadata={"help": "Least c of a constrained run."})
    acceptance_coef_max: float = field(default=1.5, metadata={"help": "Largest c of a constrained run."})
    dual_learning_rate: float = field(default=0.2, metadata={"help": "Largest change of log c per rollout."})
    dual_window: int = field(default=2048, metadata={"help": f"Rollouts in the running mean, at least {MIN_WINDOW}."})
    reference_generations: int = field(default=2, metadata={"help": "Of the target, per prompt, as yardstick."})

    clip_range: float = field(default=0.2, metadata={"help": "PPO's epsilon for the importance ratios."})
    kl_coef: float = field(default=0.0, metadata={"help": "Reward that one nat of KL to the target costs."})
    normalize_advantages: bool = field(default=False, metadata={"help": "Divide advantages by their std."})
    model_init_kwargs: dict | str | None = field(default=None, metadata={"help": "For models given by name (JSON)."})
    reward_weights: list[float] | None = field(default=None, metadata={"help": "One per reward; 1 each by default."})

    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Off: batches are rows of text."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Off: rewards read the columns."})
    logging_steps: float = field(default=4, metadata={"help": "Updates between two lines of the log."})
    save_steps: float = field(default=40, metadata={"help": "Updates between checkpoints; whole rollouts only."})
    eval_steps: float | None = field(default=40, metadata={"help": "Updates between evaluations."})
    metric_for_best_model: str | None = field(default="objective", metadata={"help": "Of `DiversedTrainer.evaluate`."})
    greater_is_better: bool | None = field(default=True, metadata={"help": "The objective is to be maximised."})
    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "The multiplier lives there."}
    )

    @property
    def constrained(self) -> bool:
        return self.acceptance_coef is None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, low, high)
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be above 0, got {self.temperature!r}: greedy rollouts have no score function. "
                "A head trained at temperature 1 also serves greedy decoding."
            )
        if not self.acceptance_coef_min <= self.acceptance_coef_init <= self.acceptance_coef_max:
            raise ValueError(
                "acceptance_coef_init must lie between acceptance_coef_min and acceptance_coef_max, got "
                f"{self.acceptance_coef_init!r} for [{self.acceptance_coef_min!r}, {self.acceptance_coef_max!r}]."
            )
        if self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps must be 1, got {self.gradient_accumulation_steps}: updates cost next to "
                "nothing; raise per_device_train_batch_size and leave the memory to generation_batch_size."
            )
        if self.per_device_train_batch_size % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size must be a multiple of num_generations={self.num_generations}, got "
                f"{self.per_device_train_batch_size}: a device draws whole groups."
            )
        for name in ("max_steps", "save_steps", "eval_steps"):
            steps = getattr(self, name)
            used = getattr(self, name.replace("_steps", "_strategy"), "steps") == "steps"
            if used and steps is not None and (steps < 1 or steps % self.num_iterations):
                raise ValueError(
                    f"{name} must be a positive multiple of num_iterations={self.num_iterations}, got {steps!r}: "
                    "between two rollouts nothing can be resumed."
                )
        by_steps = self.eval_strategy == "steps" and self.save_strategy == "steps"
        if self.load_best_model_at_end and by_steps and self.eval_steps != self.save_steps:
            raise ValueError(
                f"eval_steps must equal save_steps={self.save_steps:g} with load_best_model_at_end, got "
                f"{self.eval_steps!r}: the best head is loaded from its checkpoint."
            )


def own_settings(config: TrainingArguments) -> dict[str, Any]:
    """What a subclass of `TrainingArguments` declares itself, for provenance: all that a run of ours depends on."""
    names = {item.name for item in fields(config)} & set(type(config).__annotations__)
    return {name: getattr(config, name) for name in sorted(names)}


_RANGES = (
    ("generation_batch_size", 1, float("inf")),
    ("per_device_eval_batch_size", 1, float("inf")),
    ("num_generations", 1, float("inf")),
    ("num_iterations", 1, float("inf")),
    ("num_assistant_tokens", 1, float("inf")),
    ("max_completion_length", 2, float("inf")),
    ("reference_generations", 1, float("inf")),
    ("dual_window", MIN_WINDOW, float("inf")),
    ("top_k", 0, float("inf")),
    ("top_p", 0.0, 1.0),
    ("initial_weight", 0.01, 0.99),
    ("acceptance_coef", 0.0, float("inf")),
    ("acceptance_coef_min", 0.0, float("inf")),
    ("max_quality_drop", 0.0, 1.0),
    ("dual_learning_rate", 0.0, 1.0),
    ("clip_range", 0.0, 1.0),
    ("kl_coef", 0.0, float("inf")),
)
