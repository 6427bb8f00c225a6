"""Arguments of a training run; names follow TRL where it has an equivalent."""

from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

from transformers import TrainingArguments

from hf_diversed.verifiers.base import check_range


BASELINES = ("batch", "prompt")
MIN_WINDOW = 2000


@dataclass
class DiversedConfig(TrainingArguments):
    """`TrainingArguments` with the settings of rollouts, objective and constraint.

    One step is one update of the head. Rollouts are drawn every `num_iterations` steps and reused in between.

    The run is constrained unless `acceptance_coef` is set: the coefficient c of acceptance adapts so that the mean
    reward stays within `max_quality_drop` of the target model's own reward on the same prompts.

    Raises:
        ValueError: if a value is out of range, the batch size is not a multiple of `num_generations`, a save or
            evaluation would fall between two rollouts, evaluations and checkpoints differ with
            `load_best_model_at_end`, or gradient accumulation is enabled.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    per_device_train_batch_size: int = field(default=256, metadata={"help": "Rollouts per device and update."})
    generation_batch_size: int = field(default=128, metadata={"help": "Rows decoded together, in training."})
    per_device_eval_batch_size: int = field(default=128, metadata={"help": "Rows decoded together, in evaluation."})
    num_generations: int = field(default=4, metadata={"help": "Rollouts per prompt."})
    num_iterations: int = field(default=4, metadata={"help": "Updates per rollout."})
    max_steps: int = field(
        default=160, metadata={"help": "Total updates; max_steps / num_iterations batches of rollouts."}
    )
    learning_rate: float = field(default=0.2, metadata={"help": "Learning rate of Adam."})
    lr_scheduler_type: str = field(default="linear", metadata={"help": "Learning rate schedule, as in transformers."})
    warmup_steps: float = field(default=16, metadata={"help": "Steps of linear warm-up."})
    max_grad_norm: float = field(
        default=0.0, metadata={"help": "0 disables clipping of gradients; importance ratios are clipped instead."}
    )

    num_assistant_tokens: int = field(default=5, metadata={"help": "Draft tokens per round (gamma)."})
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of rollouts, above 0."})
    top_k: int = field(default=0, metadata={"help": "Top-k of rollouts; 0 keeps the whole vocabulary."})
    top_p: float = field(default=1.0, metadata={"help": "Top-p of rollouts; 1 keeps the whole vocabulary."})
    max_completion_length: int = field(default=128, metadata={"help": "Longest rollout in tokens."})

    head_features: str = field(
        default="distribution", metadata={"help": "Inputs of a new head: hidden, distribution or both."}
    )
    token_features: bool = field(
        default=False,
        metadata={"help": "Make a new head a token head, which predicts a weight per token, not per position."},
    )
    head_type: str = field(default="linear", metadata={"help": "Shape of a new head: linear or mlp."})
    initial_weight: float = field(
        default=0.5, metadata={"help": "Initial weight of a new mixture head on the target."}
    )
    initial_lenience: float = field(
        default=0.2,
        metadata={
            "help": "Initial lenience of a new token head: w is 1/2 at this p/q and increases as p/q decreases. Token "
            "heads with constant initial weights do not learn."
        },
    )

    acceptance_coef: float | None = field(
        default=None, metadata={"help": "c, the reward for full acceptance; by default adapted to max_quality_drop."}
    )
    max_quality_drop: float = field(
        default=0.01, metadata={"help": "Tolerated drop below the target's own mean reward, absolute."}
    )
    acceptance_coef_init: float = field(default=0.2, metadata={"help": "Initial c of a constrained run."})
    acceptance_coef_min: float = field(default=0.05, metadata={"help": "Smallest c of a constrained run."})
    acceptance_coef_max: float = field(default=1.5, metadata={"help": "Largest c of a constrained run."})
    dual_learning_rate: float = field(default=0.2, metadata={"help": "Largest change of log c per batch of rollouts."})
    dual_window: int = field(default=2048, metadata={"help": f"Rollouts in the running mean, at least {MIN_WINDOW}."})
    reference_generations: int = field(
        default=2, metadata={"help": "Completions of the target per prompt for measuring its own reward."}
    )

    clip_range: float | None = field(
        default=None,
        metadata={"help": "PPO's epsilon for the importance ratios; by default 0.5 with token features, else 0.2."},
    )
    baseline: str | None = field(
        default=None,
        metadata={
            "help": "Mean reward to subtract: batch (of all rollouts) or prompt (of the prompt's other rollouts, "
            "leave-one-out); by default prompt with token features, else batch."
        },
    )
    kl_coef: float = field(default=0.0, metadata={"help": "Penalty per nat of KL to the target, in units of reward."})
    normalize_advantages: bool = field(
        default=False, metadata={"help": "Divide advantages by their standard deviation."}
    )
    model_init_kwargs: dict | str | None = field(default=None, metadata={"help": "For loading models by name (JSON)."})
    reward_weights: list[float] | None = field(default=None, metadata={"help": "One per reward; all 1 by default."})

    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Off, because batches contain text."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Off, because rewards use the columns."})
    logging_steps: float = field(default=4, metadata={"help": "Updates between log entries."})
    save_steps: float = field(
        default=40, metadata={"help": "Updates between checkpoints, a multiple of num_iterations."}
    )
    eval_steps: float | None = field(default=40, metadata={"help": "Updates between evaluations."})
    metric_for_best_model: str | None = field(default="objective", metadata={"help": "A metric of the evaluation."})
    greater_is_better: bool | None = field(default=True, metadata={"help": "The objective is maximised."})
    restore_callback_states_from_checkpoint: bool = field(
        default=True, metadata={"help": "On, because c is restored from the checkpoint."}
    )

    def set_head_defaults(self, token_features: bool) -> None:
        """Set the defaults that depend on whether the head has token features."""
        if self.clip_range is None:
            self.clip_range = 0.5 if token_features else 0.2
        if self.baseline is None:
            self.baseline = "prompt" if token_features and self.num_generations > 1 else "batch"

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
                f"temperature must be above 0, got {self.temperature!r}: greedy rollouts give no policy gradient. A "
                "head trained at temperature 1 can also be used for greedy decoding."
            )
        self._check_baseline()
        if not self.acceptance_coef_min <= self.acceptance_coef_init <= self.acceptance_coef_max:
            raise ValueError(
                "acceptance_coef_init must lie between acceptance_coef_min and acceptance_coef_max, got "
                f"{self.acceptance_coef_init!r} for [{self.acceptance_coef_min!r}, {self.acceptance_coef_max!r}]."
            )
        if self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps must be 1, got {self.gradient_accumulation_steps}: updates are "
                "cheap; raise per_device_train_batch_size, and limit memory by generation_batch_size."
            )
        if self.per_device_train_batch_size % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size must be a multiple of num_generations={self.num_generations}, got "
                f"{self.per_device_train_batch_size}: each device draws whole groups."
            )
        for name in ("max_steps", "save_steps", "eval_steps"):
            steps = getattr(self, name)
            used = getattr(self, name.replace("_steps", "_strategy"), "steps") == "steps"
            if used and steps is not None and (steps < 1 or steps % self.num_iterations):
                raise ValueError(
                    f"{name} must be a positive multiple of num_iterations={self.num_iterations}, got {steps!r}: "
                    "runs can be resumed at rollouts only."
                )
        by_steps = self.eval_strategy == "steps" and self.save_strategy == "steps"
        if self.load_best_model_at_end and by_steps and self.eval_steps != self.save_steps:
            raise ValueError(
                f"eval_steps must equal save_steps={self.save_steps:g} with load_best_model_at_end, got "
                f"{self.eval_steps!r}: the best head is loaded from its checkpoint."
            )

    def _check_baseline(self) -> None:
        if self.baseline not in (None, *BASELINES):
            raise ValueError(f"baseline must be one of {', '.join(BASELINES)}, or None, got {self.baseline!r}.")
        if self.baseline == "prompt" and self.num_generations < 2:
            raise ValueError(
                f"baseline=prompt needs num_generations of at least 2, got {self.num_generations}: a rollout is "
                "compared with the prompt's other rollouts."
            )


def own_fields(kind: type[TrainingArguments]) -> list[Field]:
    """Return the fields that subclasses of `TrainingArguments` declare, in the order of declaration."""
    known = {item.name: item for item in fields(kind)}
    lineage = kind.__mro__[: kind.__mro__.index(TrainingArguments)]
    return [known[name] for owner in reversed(lineage) for name in owner.__annotations__ if name in known]


def own_settings(config: TrainingArguments) -> dict[str, Any]:
    """Return the values of `own_fields`, for the provenance record."""
    return {name: getattr(config, name) for name in sorted(item.name for item in own_fields(type(config)))}


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
    ("initial_lenience", 1e-4, 1.0),
    ("acceptance_coef", 0.0, float("inf")),
    ("acceptance_coef_min", 0.0, float("inf")),
    ("max_quality_drop", 0.0, 1.0),
    ("dual_learning_rate", 0.0, 1.0),
    ("clip_range", 0.0, 1.0),
    ("kl_coef", 0.0, float("inf")),
)
