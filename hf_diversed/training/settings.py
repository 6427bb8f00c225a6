"""Fields of `DiversedConfig`, without an import of torch and transformers, so `hf-diversed train --help` is fast."""

from dataclasses import dataclass, field
from typing import Any


BASELINES = ("batch", "prompt")
METRICS = ("objective", "reward", "acceptance_rate", "block_efficiency")
MIN_WINDOW = 2000


def setting(default: Any, help: str) -> Any:
    """Return a dataclass field with a text for `--help`."""
    return field(default=default, metadata={"help": help})


@dataclass
class TrainingSettings:
    """The fields that `DiversedConfig` adds to `TrainingArguments`, and the usual ones whose default it changes."""

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
    max_completion_length: int = setting(128, "Longest rollout in tokens.")

    head_features: str = setting("distribution", "Inputs of a new head: hidden, distribution or both.")
    token_features: bool = setting(
        False, "Make a new head a token head, which predicts a weight per token, not per position."
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
    max_quality_drop: float = setting(0.01, "Tolerated drop below the target's own mean reward, absolute.")
    acceptance_coef_init: float = setting(0.2, "Initial c of a constrained run.")
    acceptance_coef_min: float = setting(0.05, "Smallest c of a constrained run.")
    acceptance_coef_max: float = setting(1.5, "Largest c of a constrained run.")
    dual_learning_rate: float = setting(0.2, "Largest change of log c per batch of rollouts.")
    dual_window: int = setting(2048, f"Rollouts in the running mean, at least {MIN_WINDOW}.")
    reference_generations: int = setting(2, "Completions of the target per prompt for measuring its own reward.")

    clip_range: float | None = setting(
        None, "PPO's epsilon for the importance ratios; by default 0.5 with token features, else 0.2."
    )
    baseline: str | None = setting(
        None,
        "Mean reward to subtract: batch (of all rollouts) or prompt (of the prompt's other rollouts, "
        "leave-one-out); by default prompt with token features, else batch.",
    )
    model_init_kwargs: dict | str | None = setting(None, "For loading models by name (JSON).")
    reward_weights: list[float] | None = setting(None, "One per reward; all 1 by default.")

    logging_steps: float = setting(4, "Updates between log entries.")
    save_steps: float = setting(40, "Updates between checkpoints, a multiple of num_iterations.")
    eval_steps: float | None = setting(40, "Updates between evaluations.")
    metric_for_best_model: str | None = setting("objective", f"Metric of the evaluation: {', '.join(METRICS)}.")
