"""`DiversedTrainer` trains a head for a frozen pair and a reward, on transformers' `Trainer`."""

import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast, gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, set_seed

from hf_diversed import support
from hf_diversed.evaluation.decoder import Sampling
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.provenance import provenance, publishable
from hf_diversed.training.config import DiversedConfig
from hf_diversed.training.constraint import Constraint
from hf_diversed.training.objective import (
    MixtureAcceptance,
    TokenAcceptance,
    accepted_share,
    diversed_loss,
    leave_one_out,
)
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rewards import RewardFunc, Rows, named_rewards, score_rows
from hf_diversed.training.rollout import RolloutOrder, Rollouts, Sampler
from hf_diversed.verifiers.base import AS_TRAINED
from hf_diversed.zoo.loader import Pair


logger = support.get_logger(__name__)

CONSTRAINT = "constraint.json"  # state of the constraint, in every checkpoint

Batch = dict[str, Any]  # rollouts of this device: arguments of `diversed_loss`, and the head's inputs
Facts = dict[str, Any]  # of one rollout


class DiversedTrainer(Trainer):
    """Trains a `DiversedHead` on rollouts of speculative decoding by policy gradient (arXiv 2604.07622).

    The objective is the reward of the completions plus acceptance, see `training/objective.py`. The models are frozen
    and not part of `self.model`, so checkpoints contain only the head. Unless `args.acceptance_coef` is set, the run
    is constrained: see `DiversedConfig` and `Constraint`. With `eval_dataset` and `load_best_model_at_end`, the final
    head is the one with the highest acceptance rate that satisfied the constraint in an evaluation.

    Args:
        target: the target model.
        draft: the draft model.
        head: head to continue training; None creates one from `args.head_features`, `args.token_features`,
            `args.head_type` and its initial prediction, which are not used for a given head.
        reward_funcs: one or more functions `(completions, **columns) -> list[float | None]`, or their names; see
            `training.rewards.load_reward`.
        args: the settings of the run.
        train_dataset: rows with a "prompt", text or chat messages, and the columns that the rewards read.
        eval_dataset: held-out rows in the same format.
        processing_class: the tokenizer of the pair.
        task: name of the task, stored in the head's configuration.
        stop_strings: strings that end a completion, in addition to EOS.
        kwargs: other arguments of `Trainer`, such as `callbacks`.

    Attributes:
        options: further settings of the run, as JSON, for provenance.json; `hf-diversed train` stores its options.

    Example:
        ```python
        trainer = DiversedTrainer(
            target, draft, reward_funcs="task:gsm8k", args=config, train_dataset=rows, processing_class=tokenizer
        )
        trainer.train()
        trainer.save_model("head-gsm8k")
        ```
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        head: DiversedHead | None = None,
        *,
        reward_funcs: RewardFunc | str | Sequence[RewardFunc | str],
        args: DiversedConfig,
        train_dataset: Rows,
        eval_dataset: Rows | None = None,
        processing_class: PreTrainedTokenizerBase,
        task: str | None = None,
        stop_strings: Sequence[str] = (),
        **kwargs,
    ):
        if isinstance(reward_funcs, str) or callable(reward_funcs):
            reward_funcs = [reward_funcs]
        self.reward_funcs = named_rewards(reward_funcs)
        if not len(train_dataset):
            raise ValueError("train_dataset is empty; training needs at least one prompt.")
        weights = args.reward_weights or [1.0] * len(self.reward_funcs)
        if len(weights) != len(self.reward_funcs):
            raise ValueError(f"reward_weights must hold {len(self.reward_funcs)}, one per reward, got {len(weights)}.")
        self._score = partial(score_rows, self.reward_funcs, weights)
        for model in (target, draft):
            model.eval().requires_grad_(False)
        if args.n_gpu > 1:
            args._n_gpu = 1  # DataParallel would split groups of rollouts; use `accelerate launch` for more devices
        self._fresh = head is None  # until the inputs are standardized
        head = fresh_head(target, draft, args) if head is None else head
        head.config.task = task or head.config.task
        head.config.strictness, head.config.calibration = AS_TRAINED, None  # valid for the earlier weights only
        decoding = {"training_temperature": args.temperature, "num_assistant_tokens": args.num_assistant_tokens}
        head.config.update(DiversedHeadConfig.about_pair(target, draft) | decoding)
        args = args.for_head(head.needs_token)
        settings = Sampling(
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            num_assistant_tokens=args.num_assistant_tokens,
            max_new_tokens=args.max_completion_length,
            batch_size=args.generation_batch_size,
            stop_strings=tuple(stop_strings),
        )
        progress = not args.disable_tqdm and args.process_index == 0
        self.sampler = Sampler(Pair(target, draft, processing_class), settings, progress)
        self.acceptance_model = TokenAcceptance() if head.needs_token else MixtureAcceptance()
        self.constraint = (
            Constraint(args.max_quality_drop, args.acceptance_coef_init) if args.acceptance_coef is None else None
        )
        self.references = ReferenceRewards()
        self.options: dict[str, Any] = {}
        self.batch: Batch | None = None
        self._step_of_head: int | None = None  # step of the best head, once it is loaded
        self._metrics: dict[str, list[float]] = defaultdict(list)
        super().__init__(
            head, args, data_collator=list, train_dataset=train_dataset, eval_dataset=eval_dataset, **kwargs
        )
        self.model_accepts_loss_kwargs = False

    # Rollouts and updates

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """Train the head. Arguments are those of `Trainer.train`."""
        self._step_of_head = None
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self._step_of_head = self.state.best_global_step
        best = self.state.best_metric if self.args.metric_for_best_model == "objective" else None
        if self.constraint is not None and best is not None and best <= 0:
            logger.warning(
                f"no head kept the drop plus its standard error within max_quality_drop={self.args.max_quality_drop} "
                f"on evaluation prompts; the smallest was {-best:.4f}. Train longer, on more prompts, or increase the "
                "limit."
            )
        return output

    def _get_train_sampler(self, train_dataset=None) -> RolloutOrder:
        args = self.args
        return RolloutOrder(
            num_prompts=len(self.train_dataset),
            batch_size=args.per_device_train_batch_size * args.world_size,
            num_generations=args.num_generations,
            num_iterations=args.num_iterations,
            num_updates=args.max_steps,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )

    def _prepare_inputs(self, inputs: Rows) -> Batch:
        """Draw rollouts for the prompts at every `num_iterations`-th step; reuse them in between."""
        if self.state.global_step % self.args.num_iterations == 0 or self.batch is None:
            self.batch = self.roll_out(inputs)
        return self.batch

    def roll_out(self, rows: Rows) -> Batch:
        prompts = [row["prompt"] for row in rows]
        rollouts = self.sampler.relaxed(prompts, self.model, self._seed("rollout", self.state.global_step))
        self._measure_references(rows)
        facts: list[Facts] = gather_object(self._facts(rows, rollouts))
        self._log_rollouts(facts)
        first = self.args.process_index * len(rows)
        advantage = self._advantages(facts)[first : first + len(rows)]
        device = self.model.device
        inputs = {name: values.to(device) for name, values in rollouts.inputs.items()}
        if self.state.global_step == 0 and self._fresh:
            self._standardize(inputs)
        with torch.no_grad():
            old_logit = self.model(**inputs)
        decisions = rollouts.decisions.to(device)
        return {"inputs": inputs, "old_logit": old_logit, "decisions": decisions, "advantage": advantage.to(device)}

    def _advantages(self, facts: list[Facts]) -> torch.Tensor:
        """Return rewards of all devices minus their baseline; 0 for rollouts without a reward.

        In a constrained run, the target's own reward on the prompt is subtracted first. It depends on the prompt only,
        so it reduces variance without adding bias.
        """
        gains = [fact["reward"] for fact in facts]
        if self.constraint is not None:
            gains = [None if fact["drop"] is None else -fact["drop"] for fact in facts]
        valid = torch.tensor([gain is not None for gain in gains])
        values = torch.tensor([gain or 0.0 for gain in gains], dtype=torch.float32)
        if self.args.baseline == "prompt":
            return leave_one_out(values, valid, self.args.num_generations)
        advantage = torch.zeros_like(values)
        advantage[valid] = values[valid] - values[valid].mean()
        return advantage

    def _standardize(self, inputs: dict[str, torch.Tensor]) -> None:
        """Standardize a new head's inputs on the first rollouts; its initial predictions do not change."""
        self.model.standardize(**inputs)
        for values in (self.model.input_mean, self.model.input_std):
            values.copy_(broadcast(values))
        set_initial_prediction(self.model, self.args)
        self._fresh = False

    def compute_loss(self, model, inputs: Batch, return_outputs: bool = False, num_items_in_batch=None):
        """Return the loss of one update on this device's rollouts. Target and draft model are not run."""
        logit = model(**inputs["inputs"])
        loss, metrics = diversed_loss(
            self.acceptance_model,
            logit,
            inputs["old_logit"],
            inputs["decisions"],
            inputs["advantage"],
            acceptance_coef=self.acceptance_coef,
            clip_range=self.args.clip_range,
        )
        for name, value in metrics.items():
            self._metrics[name].append(value.item())
        return (loss, {"logit": logit}) if return_outputs else loss

    @property
    def acceptance_coef(self) -> float:
        """The reward of full acceptance in the loss."""
        return self.args.acceptance_coef if self.constraint is None else self.constraint.effective_coef

    def _facts(self, rows: Rows, rollouts: Rollouts) -> list[Facts]:
        """Return per rollout its rewards, drop against the target, counts, accepted share, length and clipping."""
        facts: list[Facts] = self._score(rows, rollouts.completions, rollouts.completion_ids)
        shares = accepted_share(rollouts.decisions).tolist()
        for index, (row, fact) in enumerate(zip(rows, facts)):
            reference = self.references[row] if self.constraint is not None else None
            measured = reference is not None and fact["reward"] is not None
            fact |= {
                "drop": reference - fact["reward"] if measured else None,
                "accepted_share": shares[index],
                "length": len(rollouts.completion_ids[index]),
                "clipped": float(not rollouts.finished[index]),
                **{name: getattr(rollouts.stats[index], name) for name in _COUNTS},
            }
        return facts

    def _log_rollouts(self, facts: list[Facts]) -> None:
        """Log one batch of rollouts of all devices, and update the constraint."""
        rewards = _column(facts, "reward")
        if not rewards:
            raise ValueError(
                "every reward of a batch of rollouts is None; check the reward functions and their columns."
            )
        metrics = {"acceptance_coef": self.acceptance_coef}
        if self.constraint is not None and (drops := _column(facts, "drop")):
            self.constraint.update(len(drops), _mean(drops), _mean(_column(facts, "accepted_share")))
            metrics["quality_drop"] = self.constraint.drop
            metrics["acceptance_coef"] = self.constraint.coef
            metrics["effective_acceptance_coef"] = self.constraint.effective_coef
        metrics |= _rates(facts) | {
            "reward_std": statistics.pstdev(rewards),
            "completions/mean_length": _mean(_column(facts, "length")),
            "completions/clipped_ratio": _mean(_column(facts, "clipped")),
            "reward": _mean(rewards),
        }
        metrics |= {f"rewards/{name}/mean": _mean(_column(facts, f"rewards/{name}")) for name in self.reward_funcs}
        if metrics["completions/clipped_ratio"] == 1.0:
            logger.warning_once(
                "no completion of a batch of rollouts ended within max_completion_length="
                f"{self.args.max_completion_length}, so rewards are those of incomplete texts; increase it."
            )
        for name, value in metrics.items():
            self._metrics[name].append(value)

    def _measure_references(self, rows: Rows) -> None:
        """In a constrained run, measure the target's own reward on this device's rows that have none yet."""
        if self.constraint is None:
            return
        repeated = [row for row in self.references.missing(rows) for _ in range(self.args.reference_generations)]
        seed = self._seed("reference", len(self.references.rewards))
        scores = self._score(repeated, *self.sampler.lossless([row["prompt"] for row in repeated], seed))
        self.references.add(gather_object([(row, score["reward"]) for row, score in zip(repeated, scores)]))

    # Evaluation

    def evaluate(self, eval_dataset: Rows | None = None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict:
        """Decode every evaluation prompt once, always with the same seed.

        Returns:
            Reward, acceptance rate, block efficiency, and `objective`, by which the best head is chosen. In a
            constrained run the objective is the acceptance rate if the mean drop plus its standard error (over
            prompts) is at most `max_quality_drop`, otherwise minus that sum. In other runs it is the reward plus c
            times the acceptance rate.
        """
        rows = list(self.eval_dataset if eval_dataset is None else eval_dataset)
        local = rows[self.args.process_index :: self.args.world_size]
        self._measure_references(local)
        facts: list[Facts] = []
        if local:  # not if there are more devices than rows
            prompts, size = [row["prompt"] for row in local], self.args.per_device_eval_batch_size
            seed = self._seed("evaluation", 0)
            facts = self._facts(local, self.sampler.relaxed(prompts, self.model, seed, size, keep_inputs=False))
        facts = gather_object(facts)
        metrics = {"reward": _mean(_column(facts, "reward"))} | _rates(facts)
        if self.constraint is None:
            metrics["objective"] = metrics["reward"] + self.acceptance_coef * metrics["acceptance_rate"]
        else:
            drops = _column(facts, "drop")
            error = statistics.stdev(drops) / math.sqrt(len(drops)) if len(drops) > 1 else 0.0
            metrics |= {"quality_drop": _mean(drops), "quality_drop_error": error}
            # The maximum of noisy means is biased upwards, so the standard error is added as a margin.
            bound = metrics["quality_drop"] + error
            metrics["objective"] = metrics["acceptance_rate"] if bound <= self.constraint.max_drop else -bound
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        handler = self.callback_handler
        self.control = handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    # Logs and checkpoints

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: _mean(values) for name, values in self._metrics.items()}
            self._metrics.clear()
        super().log(logs, start_time)

    def _seed(self, purpose: str, number: int) -> int:
        """Return a seed per purpose, number and device, so that a resumed run draws the same random numbers."""
        text = f"{self.args.seed}/{purpose}/{number}/{self.args.process_index}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")

    def floating_point_ops(self, inputs) -> int:
        return 0

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Save the head, its provenance and the state of the constraint, without pickle files."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        step = self.state.global_step if self._step_of_head is None else self._step_of_head
        evaluations = [
            {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
            for entry in self.state.log_history
            if entry["step"] == step and "eval_objective" in entry
        ]
        record = provenance(self.args.seed, self.sampler.pair.target.device) | {
            "options": self.options,
            "training": publishable(
                {item.name: getattr(self.args, item.name) for item in DiversedConfig.own_fields()}
            ),
            "rewards": list(self.reward_funcs),
            "step": step,
            "validation": evaluations[-1] if evaluations else None,
            "num_prompts": len(self.train_dataset),
            "num_eval_prompts": len(self.eval_dataset or ()),
            "world_size": self.args.world_size,
        }
        self.model.save_pretrained(folder)
        (folder / "provenance.json").write_text(json.dumps(record, indent=2, default=str) + "\n")
        if self.constraint is not None:
            state = {"constraint": asdict(self.constraint), "references": self.references.rewards}
            (folder / CONSTRAINT).write_text(json.dumps(state) + "\n")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        """Load the head and, for a constrained run, the state of the constraint; the limit is that of this run."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        path = Path(resume_from_checkpoint) / CONSTRAINT
        if self.constraint is not None and path.is_file():
            state = json.loads(path.read_text())
            self.constraint.coef, self.constraint.batches = (state["constraint"][name] for name in ("coef", "batches"))
            self.references.rewards = state["references"]


_COUNTS = ("num_accepted", "num_drafted", "num_emitted", "num_rounds")


def _rates(facts: list[Facts]) -> dict[str, float]:
    """Return the acceptance rate and the block efficiency over all rollouts."""
    accepted, drafted, emitted, rounds = (sum(fact[name] for fact in facts) for name in _COUNTS)
    return {"acceptance_rate": accepted / max(drafted, 1), "block_efficiency": emitted / max(rounds, 1)}


def _column(facts: list[Facts], name: str) -> list[float]:
    """Return a fact of all rollouts that have it."""
    return [fact[name] for fact in facts if fact[name] is not None]


def _mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for no values."""
    return sum(values) / len(values) if values else math.nan


def fresh_head(target: PreTrainedModel, draft: PreTrainedModel, args: DiversedConfig) -> DiversedHead:
    """Return a new head for a pair."""
    config = DiversedHeadConfig.for_pair(
        target,
        draft,
        head_type=args.head_type,
        features=args.head_features,
        token_features=args.token_features,
        num_assistant_tokens=args.num_assistant_tokens,
        training_temperature=args.temperature,
    )
    set_seed(args.seed)
    head = DiversedHead(config)
    set_initial_prediction(head, args)
    return head


def set_initial_prediction(head: DiversedHead, args: DiversedConfig) -> None:
    """Initialize a head to the weight `args.initial_weight` or, with token features, to `args.initial_lenience`. Call
    this again after `standardize`, so that the predictions stay the same."""
    if head.needs_token:
        head.start_lenient(args.initial_lenience)
        return
    with torch.no_grad():
        head.out.bias.fill_(math.log(args.initial_weight / (1.0 - args.initial_weight)))
