"""Fields of `DiversedConfig`, without an import of torch and transformers, so `hf-diversed train --help` is fast."""

from dataclasses import dataclass, field


BASELINES = ("batch", "prompt")
MIN_WINDOW = 2000


@dataclass
class TrainingSettings:
    """The fields that `DiversedConfig` adds to `TrainingArguments`, and those whose default it changes."""

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
