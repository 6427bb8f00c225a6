"""`DiversedTrainer` trains a head for a frozen pair and a reward, on transformers' `Trainer`."""

import copy
import dataclasses
import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast, broadcast_object_list
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerControl
from transformers.trainer_utils import IntervalStrategy

from hf_diversed import _compat
from hf_diversed.files import writing
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import check_context, encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.method_names import AS_TRAINED
from hf_diversed.provenance import data_digest, module_digest, provenance, publishable, weights_digest
from hf_diversed.tasks.rewards import RewardError, RewardFunc, RewardSum
from hf_diversed.training.acceptance import Decisions, MixtureAcceptance, TokenAcceptance
from hf_diversed.training.arguments import HEAD_OPTIONS, DiversedConfig, check_no_head_options, own_settings
from hf_diversed.training.checkpoints import WRITE_FAILURES, AtomicCheckpoints, Rescue, find_checkpoint
from hf_diversed.training.constraint import ConstraintCallback
from hf_diversed.training.loading import fresh_head, load_frozen, set_initial_prediction, target_tokenizer
from hf_diversed.training.objective import diversed_loss, leave_one_out
from hf_diversed.training.prompts import RolloutOrder, check_rows
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rollout import Sampler
from hf_diversed.training.run_folder import check_writable, sole_run
from hf_diversed.training.scoring import Rows, Scorer, gathered, known, mean, merged, standard_error
from hf_diversed.verifiers import DiversedVerifier


logger = _compat.get_logger(__name__)


@dataclasses.dataclass(eq=False)
class _Batch:
    """Rollouts of this device, with advantages `[B]` and the logits `[M]` they were drawn with."""

    decisions: Decisions
    inputs: dict[str, torch.Tensor]
    advantage: torch.Tensor
    old_logit: torch.Tensor


class DiversedTrainer(AtomicCheckpoints):
    """Trains a `DiversedHead` on rollouts of speculative decoding by policy gradient (arXiv 2604.07622).

    The objective is the reward of the completions plus acceptance, see `training/objective.py`. The models are frozen
    and not part of `self.model`, so checkpoints contain only the head. Unless `args.acceptance_coef` is set, the run
    is constrained: see `DiversedConfig` and `ConstraintCallback`. With `eval_dataset` and `load_best_model_at_end`,
    the final head is the one with the highest acceptance rate that satisfied the constraint in an evaluation.

    Args:
        target: the target model, or its name or folder (loaded with `args.model_init_kwargs`).
        draft: the draft model, or its name or folder. None for prompt lookup, as in
            `generate(prompt_lookup_num_tokens=...)`.
        head: head to continue training; None creates one from `args.head_features`, `args.token_features`,
            `args.head_type` and its initial prediction. These options must keep their defaults if `head` is given.
        reward_funcs: one or more functions `(completions, **columns) -> list[float | None]`, or their names; see
            `tasks.rewards.load_reward`.
        args: the settings of the run.
        train_dataset: rows with a "prompt", text or chat messages, and the columns that the rewards read.
        eval_dataset: held-out rows in the same format.
        processing_class: the tokenizer; by default the target's.
        task: name of the task, stored in the head's configuration.
        stop_strings: strings that end a completion, in addition to EOS.
        kwargs: other arguments of `Trainer`, such as `callbacks`.

    Attributes:
        options: further settings of the run, as JSON, for provenance.json; `hf-diversed train` stores its options.

    Example:
        ```python
        trainer = DiversedTrainer(target, draft, reward_funcs="task:gsm8k", args=config, train_dataset=rows)
        trainer.train()
        trainer.save_model("head-gsm8k")
        ```
    """

    control: TrainerControl

    def __init__(
        self,
        target: PreTrainedModel | str,
        draft: PreTrainedModel | str | None,
        head: DiversedHead | None = None,
        *,
        reward_funcs: RewardFunc | str | Sequence[RewardFunc | str],
        args: DiversedConfig,
        train_dataset: Rows,
        eval_dataset: Rows | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        task: str | None = None,
        stop_strings: Sequence[str] = (),
        **kwargs,
    ):
        single = isinstance(reward_funcs, str) or callable(reward_funcs)
        functions: Any = [reward_funcs] if single else reward_funcs
        self.scorer = Scorer(RewardSum(functions, args.reward_weights))
        check_rows("train_dataset", train_dataset)
        if eval_dataset is not None:
            check_rows("eval_dataset", eval_dataset)
        elif args.eval_strategy != IntervalStrategy.NO:
            raise ValueError(
                f'eval_strategy="{args.eval_strategy.value}" needs eval_dataset, got none (one prompt cannot be '
                'split). Pass held-out prompts, or eval_strategy="no" and load_best_model_at_end=False.'
            )
        tokenizer = processing_class or target_tokenizer(target)
        if args.should_save:
            check_writable(Path(args.output_dir))
        target, draft = load_frozen(target, args), None if draft is None else load_frozen(draft, args)
        if args.n_gpu > 1:
            args._n_gpu = 1  # DataParallel would split groups of rollouts; use `accelerate launch` for more devices
        self._fresh, self._continued_from = head is None, None
        if head is None:
            head = fresh_head(target, draft, args)
        else:
            check_no_head_options(args)
            self._continued_from = module_digest(head)
        head.config.task = task or head.config.task
        head.config.strictness, head.config.calibration = AS_TRAINED, None  # valid for the earlier weights only
        decoding = {"training_temperature": args.temperature, "num_assistant_tokens": args.num_assistant_tokens}
        head.config.update(DiversedHeadConfig.about_pair(target, draft) | decoding)
        args = copy.copy(args)  # the caller may reuse it for another kind of head
        args.set_head_defaults(head.needs_token)
        settings = Sampling(
            temperature=args.temperature,
            top_k=args.top_k,
            top_p=args.top_p,
            num_assistant_tokens=args.num_assistant_tokens,
            max_new_tokens=args.max_completion_length,
            batch_size=args.generation_batch_size,
            stop_strings=tuple(stop_strings),
        )
        self.sampler = Sampler(Pair(target, draft, tokenizer), settings)
        self.acceptance_model = TokenAcceptance() if head.needs_token else MixtureAcceptance()
        self.seconds = dict.fromkeys(("reference", "rollout", "reward", "evaluation", "save"), 0.0)
        self.options: dict[str, Any] = {}
        self.batch: _Batch | None = None
        self._step_of_head: int | None = None  # step of the best head, once it is loaded
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self.constraint = ConstraintCallback(
            max_drop=args.max_quality_drop,
            coef=args.acceptance_coef_init if args.acceptance_coef is None else args.acceptance_coef,
            low=args.acceptance_coef_min,
            high=args.acceptance_coef_max,
            learning_rate=args.dual_learning_rate,
            window=args.dual_window,
            fixed=not args.constrained,
        )
        kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), self.constraint]
        super().__init__(
            head,
            args,
            data_collator=list,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False
        self.rescue = Rescue(self)
        self.add_callback(self.rescue)
        self._check_context("train_dataset", train_dataset)
        self._check_context("eval_dataset", eval_dataset or ())
        if not self._fresh:  # raises for a head of another pair, before references are measured
            prompt = encode(tokenizer, [train_dataset[0]["prompt"]])
            self.sampler.decoder(Method("diversed", DiversedVerifier(self.model)), prompt, seed=0, max_new_tokens=2)

    # Rollouts and updates

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """Train the head.

        Args:
            resume_from_checkpoint: a checkpoint folder, or True for the newest checkpoint in `output_dir`.
            kwargs: other arguments of `Trainer.train`.

        Raises:
            ValueError: if the given folder is missing, contains no optimizer state, is not in `output_dir`, or is not
                the newest checkpoint there.
            RewardError: if a reward raises. A checkpoint of the steps so far is saved first.
            OSError: if another run is training in `output_dir`, or a file there cannot be written.
        """
        with sole_run(self.args):
            checkpoint = find_checkpoint(resume_from_checkpoint, Path(self.args.output_dir))
            return self._train(checkpoint, **kwargs)

    def _train(self, resume_from_checkpoint: str | None, **kwargs):
        self._began, self.seconds = time.perf_counter(), dict.fromkeys(self.seconds, 0.0)
        if self.args.constrained:
            self._measure_references([*self.train_dataset, *(self.eval_dataset or ())])
        self._step_of_head = None
        try:
            output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        except RewardError as error:
            raise self.rescue.save(error) from error
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self._step_of_head = self.state.best_global_step
        best = self.state.best_metric
        by_objective = self.args.metric_for_best_model in ("objective", "eval_objective")
        if self.args.constrained and by_objective and best is not None and best <= 0:
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

    def _prepare_inputs(self, inputs: Rows) -> _Batch:
        """Draw rollouts for the prompts at every `num_iterations`-th step; reuse them in between."""
        if self.state.global_step % self.args.num_iterations == 0 or self.batch is None:
            self.batch = self.roll_out(inputs)
        return self.batch

    def roll_out(self, rows: Rows) -> _Batch:
        with self._timed("rollout"):
            prompts = [row["prompt"] for row in rows]
            rollouts = self.sampler.relaxed(prompts, self.model, self._seed("rollout", self.state.global_step))
        with self._timed("reward"):
            facts = merged(gathered(lambda: [self.scorer.facts(rows, rollouts)]))
        first = self.args.process_index * len(rows)
        if all(reward is None for reward in facts["reward"]):
            raise RewardError("every reward of a batch of rollouts is None; check the reward functions.")
        advantage = self._advantages(facts)
        self._note(facts)
        device = self.model.device
        decisions = rollouts.decisions.to(device)
        inputs = {name: values.to(device) for name, values in rollouts.inputs.items()}
        if self.state.global_step == 0 and self._fresh:
            if not all(num_drafted for _, num_drafted, *_ in facts["counts"]):
                raise ValueError(
                    "the first rollouts have no draft tokens, so the head's inputs cannot be standardized: prompt "
                    "lookup found nothing to copy. Use larger batches, or prompts that the answers repeat."
                )
            self._standardize(inputs)
        with torch.no_grad():
            old_logit = self.model(**inputs)
        return _Batch(decisions, inputs, advantage[first : first + len(rows)].to(device), old_logit)

    def _advantages(self, facts: dict[str, list]) -> torch.Tensor:
        """Return rewards of all devices minus their baseline; 0 for rollouts without a reward.

        In a constrained run, the target's own reward on the prompt is subtracted first. It depends on the prompt only,
        so it reduces variance without adding bias.
        """
        gains = facts["reward"]
        if self.scorer.references is not None:
            gains = [None if drop is None else -drop for drop in facts["drop"]]
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

    def compute_loss(self, model, inputs: _Batch, return_outputs: bool = False, num_items_in_batch=None):
        """Return the loss of one update on this device's rollouts. Target and draft model are not run."""
        logit = model(**inputs.inputs)
        loss, metrics = diversed_loss(
            self.acceptance_model,
            logit,
            inputs.old_logit,
            inputs.decisions,
            inputs.advantage,
            acceptance_coef=self.constraint.effective_coef,
            clip_range=self.args.clip_range,
        )
        for name, value in metrics.items():
            self._metrics[name].append(value.item())
        return (loss, {"logit": logit}) if return_outputs else loss

    def _note(self, facts: dict[str, list]) -> None:
        """Log one batch of rollouts of all devices, and update the constraint."""
        drops = known(facts.get("drop", []))
        if drops:
            self.constraint.update(len(drops), sum(drops) / len(drops), mean(facts["accepted"]))
            self._metrics["quality_drop"].append(self.constraint.drop)
            self._metrics["effective_acceptance_coef"].append(self.constraint.effective_coef)
        accepted, drafted, emitted, rounds = (sum(column) for column in zip(*facts["counts"]))
        self._metrics["acceptance_coef"].append(self.constraint.coef)
        self._metrics["acceptance_rate"].append(accepted / max(drafted, 1))
        self._metrics["block_efficiency"].append(emitted / max(rounds, 1))
        rewards = torch.tensor(known(facts["reward"]), dtype=torch.float32)
        self._metrics["reward_std"].append(rewards.std(correction=0).item())
        self._metrics["completions/mean_length"].append(mean(facts["length"]))
        self._metrics["completions/clipped_ratio"].append(mean(facts["clipped"]))
        for name, values in facts.items():
            if name.startswith("reward"):
                self._metrics[name if name == "reward" else f"{name}/mean"].append(mean(known(values)))

    def _stored_references(self) -> ReferenceRewards:
        """Return the stored reference rewards, read by the first process: other nodes may not share its disk."""
        args = self.args
        references = ReferenceRewards(
            Path(args.output_dir) / "reference_rewards.json",
            {
                "target": self.model.config.base_model_name_or_path,
                "target_weights": weights_digest(self.sampler.pair.target),
                "rewards": self.scorer.reward.names,
                "reward_code": data_digest(self.scorer.reward.code),
                "chat_template": data_digest(self.sampler.pair.tokenizer.chat_template),
                "reward_weights": self.scorer.reward.weights,
                "generations": args.reference_generations,
                "seed": args.seed,
                **dataclasses.asdict(self.sampler.settings),
            },
        )
        references.rewards = broadcast_object_list([references.rewards])[0]
        return references

    def _measure_references(self, rows: Rows) -> None:
        """Measure the target's own reward on every row without a stored one."""
        args = self.args
        references = self.scorer.references or self._stored_references()
        self.scorer.references = references
        portion = max(1, 2 * args.generation_batch_size * args.world_size // args.reference_generations)
        with self._timed("reference"):
            references.measure(rows, self._reference_rewards, portion, save=self.is_world_process_zero())

    def _reference_rewards(self, rows: Rows, number: int) -> list[tuple[dict[str, Any], float | None]]:
        """Return (row, reward) of each completion drawn from the target distribution, on all devices."""
        args = self.args
        local = [row for row in rows[args.process_index :: args.world_size] for _ in range(args.reference_generations)]
        prompts = [row["prompt"] for row in local]
        drawn = self.sampler.lossless(prompts, self._seed("reference", number))
        return gathered(lambda: list(zip(local, self.scorer.rewards(local, *drawn)["reward"])) if local else [])

    def _check_context(self, name: str, rows: Rows) -> None:
        pair = self.sampler.pair
        models = {"target": pair.target} | ({} if pair.draft is None else {"draft": pair.draft})
        lengths = [len(ids) for ids in encode(pair.tokenizer, [row["prompt"] for row in rows])]
        check_context(name, lengths, self.args.max_completion_length, models)

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
        if self.args.constrained:
            self._measure_references(rows)
        local = rows[self.args.process_index :: self.args.world_size]
        with self._timed("evaluation"):
            facts = merged(gathered(lambda: [self.evaluated(local)] if local else []))
        accepted, drafted, emitted, rounds = (sum(column) for column in zip(*facts["counts"]))
        metrics = {
            "reward": mean(known(facts["reward"])),
            "acceptance_rate": accepted / max(drafted, 1),
            "block_efficiency": emitted / max(rounds, 1),
        }
        if self.args.constrained:
            drops = known(facts["drop"])
            metrics["quality_drop"], metrics["quality_drop_error"] = mean(drops), standard_error(drops)
        metrics["objective"] = self.constraint.objective(metrics)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluated(self, rows: Rows) -> dict[str, list]:
        prompts = [row["prompt"] for row in rows]
        size = self.args.per_device_eval_batch_size
        seed = self._seed("evaluation", 0)
        return self.scorer.facts(rows, self.sampler.relaxed(prompts, self.model, seed, size, keep_inputs=False))

    # Logs and checkpoints

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: mean(values) for name, values in self._metrics.items()}
            self._metrics.clear()
        if "loss" in logs or "train_runtime" in logs:  # the latter is logged last
            rest = time.perf_counter() - self._began - sum(self.seconds.values())
            logs |= {f"time/{name}": round(value, 2) for name, value in (self.seconds | {"update": rest}).items()}
        super().log(logs, start_time)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - began

    def _seed(self, purpose: str, number: int) -> int:
        """Return a seed per purpose, number and device, so that a resumed run draws the same random numbers."""
        text = f"{self.args.seed}/{purpose}/{number}/{self.args.process_index}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")

    def floating_point_ops(self, inputs) -> int:
        return 0

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Save the head and its provenance, without pickle files."""
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        step = self.state.global_step if self._step_of_head is None else self._step_of_head
        settings = own_settings(self.args)
        if self._continued_from is not None:
            settings = {name: value for name, value in settings.items() if name not in HEAD_OPTIONS}
        record = provenance(self.args.seed, self.sampler.pair.target.device) | {
            "options": self.options,
            "training": publishable(settings),
            "continued_from": self._continued_from,
            "rewards": self.scorer.reward.names,
            "step": step,
            "validation": self._validation(step),
            "acceptance_coef": self.constraint.coef,
            "num_prompts": len(self.train_dataset),
            "num_eval_prompts": len(self.eval_dataset or ()),
            "world_size": self.args.world_size,
        }
        with writing(folder, *WRITE_FAILURES):
            self.model.save_pretrained(folder)
            (folder / "provenance.json").write_text(json.dumps(record, indent=2, default=str) + "\n")

    def _validation(self, step: int) -> dict[str, float] | None:
        """Return the metrics of the evaluation at `step`; None if there was none."""
        entries = (entry for entry in self.state.log_history if entry["step"] == step and "eval_objective" in entry)
        entry = next(entries, None)
        if entry is None:
            return None
        return {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}

    def _load_callback_state(self) -> None:
        """Restore the constraint's state from the checkpoint, but keep this run's settings, which may differ."""
        super()._load_callback_state()
        self._fresh = False
        restored = next(cb for cb in self.callback_handler.callbacks if isinstance(cb, ConstraintCallback))
        self.constraint.continue_from(restored)
        self.callback_handler.remove_callback(restored)
        self.callback_handler.add_callback(self.constraint)
        self._select_best()

    def _select_best(self) -> None:
        """Choose the best evaluated step by the metric and the limit of this run, which may be new.

        With `load_best_model_at_end`, only steps with a checkpoint are candidates.
        """
        if self.args.metric_for_best_model is None:
            return
        values: dict[int, float] = {}
        for entry in self.state.log_history:
            step = entry["step"]
            metrics = self._validation(step)
            if metrics is None or (self.args.constrained and "quality_drop" not in metrics):
                continue
            metrics["objective"] = self.constraint.objective(metrics)
            value = metrics[self.args.metric_for_best_model.removeprefix("eval_")]
            if not math.isnan(value) and (self._checkpoint(step).is_dir() or not self.args.load_best_model_at_end):
                values[step] = value
        best = (max if self.args.greater_is_better else min)(values, key=values.__getitem__, default=None)
        self.state.best_global_step = best
        self.state.best_metric = None if best is None else values[best]
        self.state.best_model_checkpoint = None
        self._locate_best()

    def _save_checkpoint(self, model, trial) -> None:
        with self._timed("save"):
            super()._save_checkpoint(model, trial)
