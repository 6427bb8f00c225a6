"""Settings of a training run; names follow TRL where it has an equivalent."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from transformers import TrainingArguments

from hf_diversed.training.settings import BASELINES, METRICS, MIN_WINDOW, TrainingSettings, setting
from hf_diversed.verifiers.base import check_range


# Options of a new head, which a given one does not use.
HEAD_OPTIONS = ("head_features", "token_features", "head_type", "initial_weight", "initial_lenience")
_INF = float("inf")
_RANGES = (
    ("generation_batch_size", 1, _INF),
    ("per_device_eval_batch_size", 1, _INF),
    ("num_generations", 1, _INF),
    ("num_iterations", 1, _INF),
    ("num_assistant_tokens", 1, _INF),
    ("max_completion_length", 2, _INF),
    ("reference_generations", 1, _INF),
    ("dual_window", MIN_WINDOW, _INF),
    ("top_k", 0, _INF),
    ("top_p", 0.0, 1.0),
    ("initial_weight", 0.01, 0.99),
    ("initial_lenience", 1e-4, 1.0),
    ("acceptance_coef", 0.0, _INF),
    ("acceptance_coef_min", 0.0, _INF),
    ("max_quality_drop", 0.0, 1.0),
    ("dual_learning_rate", 0.0, 1.0),
    ("clip_range", 0.0, 1.0),
)
# Options of the constraint, which a run with a fixed `acceptance_coef` does not use.
_OF_CONSTRAINT = (
    *("max_quality_drop", "acceptance_coef_init", "acceptance_coef_min", "acceptance_coef_max"),
    *("dual_learning_rate", "dual_window", "reference_generations"),
)


@dataclass
class DiversedConfig(TrainingSettings, TrainingArguments):
    """`TrainingArguments` with the settings of rollouts, objective and constraint.

    One step is one update of the head. Rollouts are drawn every `num_iterations` steps and reused in between.

    The run is constrained unless `acceptance_coef` is set: the coefficient c of acceptance adapts so that the mean
    reward stays within `max_quality_drop` of the target model's own reward on the same prompts.

    Raises:
        ValueError: if a value is out of range, the batch size is not a multiple of `num_generations`, a save or
            evaluation would fall between two rollouts, evaluations and checkpoints differ with
            `load_best_model_at_end`, gradient accumulation is enabled, or an option is set that has no effect.
    """

    dataloader_pin_memory: bool = setting(False, "Off, because batches contain text.")
    remove_unused_columns: bool = setting(False, "Off, because rewards use the columns.")
    restore_callback_states_from_checkpoint: bool = setting(True, "On, because c is restored from the checkpoint.")
    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    def set_head_defaults(self, token_features: bool) -> None:
        """Set the defaults that depend on whether the head has token features."""
        if self.clip_range is None:
            self.clip_range = 0.5 if token_features else 0.2
        if self.baseline is None:
            self.baseline = "prompt" if token_features and self.num_generations > 1 else "batch"

    @property
    def constrained(self) -> bool:
        return self.acceptance_coef is None

    def changed(self, names: Sequence[str]) -> list[str]:
        """Return the names of the options that do not have their default."""
        defaults = {item.name: item.default for item in fields(TrainingSettings)}
        return [name for name in names if getattr(self, name) != defaults[name]]

    def recorded(self) -> dict[str, Any]:
        """Return the fields in `TrainingSettings`, for the provenance record."""
        return {item.name: getattr(self, item.name) for item in fields(TrainingSettings)}

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
        if self.baseline not in (None, *BASELINES):
            raise ValueError(f"baseline must be one of {', '.join(BASELINES)}, or None, got {self.baseline!r}.")
        if self.baseline == "prompt" and self.num_generations < 2:
            raise ValueError(
                f"baseline=prompt needs num_generations of at least 2, got {self.num_generations}: a rollout is "
                "compared with the prompt's other rollouts."
            )
        if not self.acceptance_coef_min <= self.acceptance_coef_init <= self.acceptance_coef_max:
            raise ValueError(
                "acceptance_coef_init must lie between acceptance_coef_min and acceptance_coef_max, got "
                f"{self.acceptance_coef_init!r} for [{self.acceptance_coef_min!r}, {self.acceptance_coef_max!r}]."
            )
        if (self.metric_for_best_model or "").removeprefix("eval_") not in METRICS:
            raise ValueError(
                f"metric_for_best_model must be one of {', '.join(METRICS)}, got {self.metric_for_best_model!r}."
            )
        self._check_unused("token_features", ["initial_weight" if self.token_features else "initial_lenience"])
        if not self.constrained:
            self._check_unused("acceptance_coef", _OF_CONSTRAINT)
        self._check_steps()

    def _check_unused(self, option: str, names: Sequence[str]) -> None:
        """Raise ValueError if an option is set that has no effect with the value of `option`."""
        if given := self.changed(names):
            raise ValueError(f"not used with {option}={getattr(self, option)}: {', '.join(given)}. Leave them out.")

    def _check_steps(self) -> None:
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
        saves, evaluates = self.save_strategy == "steps", self.eval_strategy == "steps"
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
