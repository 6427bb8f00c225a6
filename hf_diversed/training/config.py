"""Settings of a training run; names follow TRL where it has an equivalent."""

import copy
from dataclasses import Field, dataclass, field, fields
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from hf_diversed.verifiers.base import check_range


_INF = float("inf")
_RANGES = {
    "generation_batch_size": (1, _INF),
    "num_generations": (1, _INF),
    "num_iterations": (1, _INF),
    "num_assistant_tokens": (1, _INF),
    "max_completion_length": (2, _INF),
    "reference_generations": (1, _INF),
    "top_k": (0, _INF),
    "top_p": (0.0, 1.0),
    "initial_weight": (0.01, 0.99),
    "initial_lenience": (1e-4, 1.0),
    "acceptance_coef": (0.0, _INF),
    "acceptance_coef_init": (0.0, _INF),
    "max_quality_drop": (0.0, 1.0),
    "clip_range": (0.0, 1.0),
}


def setting(default: Any, help: str) -> Any:
    """Return a dataclass field with a text for `--help`."""
    return field(default=default, metadata={"help": help})


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

    per_device_train_batch_size: int = setting(256, "Rollouts per device and update.")
    generation_batch_size: int = setting(128, "Rows decoded together, in training.")
    per_device_eval_batch_size: int = setting(128, "Rows decoded together, in evaluation.")
    num_generations: int = setting(4, "Rollouts per prompt.")
    num_iterations: int = setting(4, "Updates per rollout.")
    max_steps: int = setting(160, "Total updates; max_steps / num_iterations batches of rollouts.")
    learning_rate: float = setting(0.2, "Learning rate of Adam.")
    warmup_steps: float = setting(16, "Steps of linear warm-up.")
    max_grad_norm: float = setting(0.0, "0 disables clipping of gradients; importance ratios are clipped instead.")

    num_assistant_tokens: int = setting(5, "Draft tokens per round (gamma).")
    temperature: float = setting(1.0, "Sampling temperature of rollouts, above 0.")
    top_k: int = setting(0, "Top-k of rollouts; 0 keeps the whole vocabulary.")
    top_p: float = setting(1.0, "Top-p of rollouts; 1 keeps the whole vocabulary.")
    max_completion_length: int = setting(
        128, "Longest rollout in tokens; on the command line, by default that of the task's answers."
    )

    head_features: str = setting(
        "distribution",
        "Inputs of a new head: hidden (both models' hidden states, as in the paper), distribution or both.",
    )
    token_features: bool = setting(
        False, "Make a new head a token head, with a weight per token; by default a mixture head, as in the paper."
    )
    head_type: str = setting("linear", "Shape of a new head: linear or mlp.")
    initial_weight: float = setting(0.5, "Initial weight of a new mixture head on the target.")
    initial_lenience: float = setting(
        0.2,
        "Initial lenience of a new token head: w is 1/2 at this p/q and increases as p/q decreases. Token "
        "heads with constant initial weights do not learn.",
    )

    acceptance_coef: float | None = setting(
        None, "c, the reward for full acceptance; by default adapted to max_quality_drop."
    )
    max_quality_drop: float = setting(
        0.01, "Without acceptance_coef: tolerated drop below the target's own mean reward, absolute."
    )
    acceptance_coef_init: float = setting(0.2, "Initial c, without acceptance_coef.")
    reference_generations: int = setting(2, "Completions of the target per prompt for measuring its own reward.")

    clip_range: float | None = setting(
        None, "PPO's epsilon for the importance ratios; by default 0.5 with token features, else 0.2."
    )
    baseline: str | None = setting(
        None,
        "Mean reward to subtract: batch (of all rollouts) or prompt (of the prompt's other rollouts, "
        "leave-one-out); by default prompt with token features, else batch.",
    )
    reward_weights: list[float] | None = setting(None, "One per reward; all 1 by default.")

    logging_steps: float = setting(4, "Updates between log entries.")
    save_steps: float = setting(40, "Updates between checkpoints, a multiple of num_iterations.")
    eval_steps: float | None = setting(40, "Updates between evaluations.")
    metric_for_best_model: str | None = setting(
        "objective", "Metric of the evaluation: objective, reward, acceptance_rate or block_efficiency."
    )
    dataloader_pin_memory: bool = setting(False, "Off, because batches contain text.")
    remove_unused_columns: bool = setting(False, "Off, because rewards use the columns.")

    @classmethod
    def own_fields(cls) -> list[Field]:
        """Return the fields that are not in `TrainingArguments`, or have another default there."""
        return [item for item in fields(cls) if item.name in DiversedConfig.__annotations__]

    def for_head(self, token_features: bool) -> "DiversedConfig":
        """Return a copy with the defaults that depend on whether the head has token features."""
        found = copy.copy(self)
        if found.clip_range is None:
            found.clip_range = 0.5 if token_features else 0.2
        if found.baseline is None:
            found.baseline = "prompt" if token_features and self.num_generations > 1 else "batch"
        return found

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in _RANGES.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, low, high)
        if not self.temperature > 0:
            raise ValueError(
                f"temperature must be above 0, got {self.temperature!r}: greedy rollouts give no policy gradient. A "
                "head trained at temperature 1 can also be used for greedy decoding."
            )
        if self.baseline not in (None, "batch", "prompt"):
            raise ValueError(f"baseline must be batch, prompt or None, got {self.baseline!r}.")
        if self.baseline == "prompt" and self.num_generations < 2:
            raise ValueError(
                f"baseline=prompt needs num_generations of at least 2, got {self.num_generations}: a rollout is "
                "compared with the prompt's other rollouts."
            )
        if self.push_to_hub:
            raise ValueError("push_to_hub is not supported: publish the saved head with `hf-diversed push`.")
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
        if self.per_device_train_batch_size * self.world_size < 2:  # a single rollout has advantage 0
            raise ValueError(
                "per_device_train_batch_size must be at least 2 on one device, got "
                f"{self.per_device_train_batch_size}."
            )
        saves, evaluates = self.save_strategy == SaveStrategy.STEPS, self.eval_strategy == IntervalStrategy.STEPS
        for name in ["max_steps"] + ["save_steps"] * saves + ["eval_steps"] * evaluates:
            steps = getattr(self, name)
            if steps < 1 or steps % self.num_iterations:
                raise ValueError(
                    f"{name} must be a positive multiple of num_iterations={self.num_iterations}, got {steps!r}: "
                    "runs can be resumed at rollouts only."
                )
        if self.load_best_model_at_end and saves and evaluates and self.eval_steps != self.save_steps:
            raise ValueError(
                f"eval_steps must equal save_steps={self.save_steps:g} with load_best_model_at_end, got "
                f"{self.eval_steps!r}: the best head is loaded from its checkpoint."
            )
