"""Settings of the training runs beyond `TrainingArguments`; `arguments.py` and `draft_tuning.py` check the values."""

from dataclasses import dataclass, field


MIN_WINDOW = 2000


@dataclass
class HeadTrainingSettings:
    """Settings of head training beyond `TrainingArguments`, and the defaults that differ from it."""

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

    head_features: str = field(
        default="distribution", metadata={"help": "What a new head sees: hidden, distribution or both."}
    )
    token_features: bool = field(
        default=False, metadata={"help": "Let a new head see the drafted token, too: a weight per token."}
    )
    head_type: str = field(default="linear", metadata={"help": "Shape of a new head: linear or mlp."})
    initial_weight: float = field(default=0.5, metadata={"help": "Weight on the target that a new head starts from."})
    initial_lenience: float = field(
        default=0.2,
        metadata={
            "help": "Where a new head with token features starts instead: w is 1/2 where p/q is this, and rises as "
            "p/q falls, as under lenience; a flat start learns nothing."
        },
    )

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

    clip_range: float | None = field(
        default=None,
        metadata={"help": "PPO's epsilon for the importance ratios; by default 0.5 with token features, else 0.2."},
    )
    baseline: str | None = field(
        default=None,
        metadata={
            "help": "What a reward is compared with: batch (the mean of all rollouts) or prompt (that of the prompt's "
            "other rollouts, leave-one-out); by default prompt with token features, else batch."
        },
    )
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


@dataclass
class DraftTuningSettings:
    """Settings of draft tuning beyond `TrainingArguments`, and the defaults that differ from it."""

    per_device_train_batch_size: int = field(default=8, metadata={"help": "Completions per device and update."})
    learning_rate: float = field(default=2e-4, metadata={"help": "Of AdamW, on the adapter."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "As in transformers."})

    mode: str = field(
        default="distill",
        metadata={"help": '"distill": towards the target on its completions; "supervised": to the references.'},
    )
    divergence: str = field(
        default="kl",
        metadata={"help": 'Of distillation: "kl" is KL(p||q), "tv" is TV(p, q), "lk" is -log(1 - TV(p, q)).'},
    )
    all_weights: bool = field(
        default=False,
        metadata={"help": "Train the draft itself in the place of an adapter: for one that agrees seldom yet."},
    )
    lora_r: int = field(default=16, metadata={"help": "Rank of the adapter."})
    lora_alpha: int = field(default=32, metadata={"help": "Scale of the adapter is lora_alpha / lora_r."})
    lora_dropout: float = field(default=0.0, metadata={"help": "On the adapter's input."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"],
        metadata={"help": 'Names of the layers that get one; "all-linear" is all but the output.'},
    )
    temperature: float = field(
        default=1.0, metadata={"help": "Of the target's completions, and of both distributions."}
    )
    max_completion_length: int = field(default=128, metadata={"help": "Longest completion in tokens."})
    num_samples_per_prompt: int = field(default=1, metadata={"help": "The target's completions per prompt."})
    generation_batch_size: int = field(default=128, metadata={"help": "Completions of the target drawn together."})
    keep_target_states: bool = field(
        default=False,
        metadata={
            "help": "Of distillation: have the target read each completion once and keep its hidden states on the "
            "disk. Pays from the second epoch on, the more the longer the prompts."
        },
    )
    merge: bool = field(default=False, metadata={"help": 'Also write draft and adapter as one model, in "merged".'})
    resume: bool = field(default=False, metadata={"help": "Go on from the newest complete checkpoint."})
    model_init_kwargs: dict | str | None = field(default=None, metadata={"help": "For models given by name (JSON)."})

    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Off: batches are small."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Must stay off: no column is unused."})
