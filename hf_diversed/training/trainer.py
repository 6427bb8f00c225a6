"""`DiversedTrainer` trains a head for a frozen pair and a reward, on transformers' `Trainer`."""

import copy
import dataclasses
import hashlib
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast
from huggingface_hub import CommitInfo
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerControl
from transformers.trainer_utils import HubStrategy, IntervalStrategy

from hf_diversed import support
from hf_diversed.evaluation.decoder import Method, Sampling, check_context, encode
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.provenance import module_digest, provenance, publishable
from hf_diversed.training.config import HEAD_OPTIONS, DiversedConfig
from hf_diversed.training.constraint import ConstraintCallback
from hf_diversed.training.objective import (
    Decisions,
    MixtureAcceptance,
    TokenAcceptance,
    accepted_share,
    diversed_loss,
    leave_one_out,
)
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rewards import RewardError, RewardFunc, RewardSum, Rows, gathered, known, mean, merged
from hf_diversed.training.rollout import RolloutOrder, Rollouts, Sampler
from hf_diversed.verifiers import DiversedVerifier
from hf_diversed.verifiers.base import AS_TRAINED
from hf_diversed.zoo.loader import Pair, load_tokenizer


logger = support.get_logger(__name__)


@dataclasses.dataclass(eq=False)
class _Batch:
    """Rollouts of this device, with advantages `[B]` and the logits `[M]` they were drawn with."""

    decisions: Decisions
    inputs: dict[str, torch.Tensor]
    advantage: torch.Tensor
    old_logit: torch.Tensor


class DiversedTrainer(Trainer):
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
            `training.rewards.load_reward`.
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
        self.rewards = RewardSum(functions, args.reward_weights)
        check_rows("train_dataset", train_dataset)
        if eval_dataset is not None:
            check_rows("eval_dataset", eval_dataset)
        elif args.eval_strategy != IntervalStrategy.NO:
            raise ValueError(
                f'eval_strategy="{args.eval_strategy.value}" needs eval_dataset, got none (one prompt cannot be '
                'split). Pass held-out prompts, or eval_strategy="no" and load_best_model_at_end=False.'
            )
        tokenizer = processing_class or target_tokenizer(target)
        target, draft = load_frozen(target, args), None if draft is None else load_frozen(draft, args)
        if args.n_gpu > 1:
            args._n_gpu = 1  # DataParallel would split groups of rollouts; use `accelerate launch` for more devices
        self._fresh, self._continued_from = head is None, None
        if head is None:
            head = fresh_head(target, draft, args)
        else:
            if given := args.changed(HEAD_OPTIONS):
                raise ValueError(
                    f"{', '.join(given)} can only be set for a new head, but head= was given; leave them out."
                )
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
        shown = not args.disable_tqdm and args.process_index == 0
        self.sampler = Sampler(Pair(target, draft, tokenizer), settings, progress=shown)
        self.acceptance_model = TokenAcceptance() if head.needs_token else MixtureAcceptance()
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
        self.references = ReferenceRewards()
        kwargs["callbacks"] = [*(kwargs.get("callbacks") or ()), self.constraint, self.references]
        super().__init__(
            head,
            args,
            data_collator=list,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False
        self._check_context("train_dataset", train_dataset)
        self._check_context("eval_dataset", eval_dataset or ())
        if not self._fresh:  # raises for a head of another pair
            prompt = encode(tokenizer, [train_dataset[0]["prompt"]])
            self.sampler.decoder(Method("diversed", DiversedVerifier(self.model)), prompt, seed=0, max_new_tokens=2)

    # Rollouts and updates

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """Train the head. Arguments are those of `Trainer.train`.

        Raises:
            RewardError: if a reward raises or returns an invalid value.
        """
        self._step_of_head = None
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
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
        prompts = [row["prompt"] for row in rows]
        rollouts = self.sampler.relaxed(prompts, self.model, self._seed("rollout", self.state.global_step))
        self._measure_references(rows)
        facts = merged(gathered(lambda: [self._facts(rows, rollouts)]))
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
        if self.args.constrained:
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
        if drops := known(facts["drop"]):
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

    def _facts(self, rows: Rows, rollouts: Rollouts) -> dict[str, list]:
        """Return lists with one entry per rollout: rewards, drop against the target, accepted share, length and
        truncation; and "counts" of the whole batch."""
        facts = self.rewards.of_rows(rows, rollouts.completions, rollouts.completion_ids)
        references = [self.references[row] if self.args.constrained else None for row in rows]
        counts = rollouts.stats
        return facts | {
            "drop": [
                None if reference is None or reward is None else reference - reward
                for reference, reward in zip(references, facts["reward"])
            ],
            "accepted": accepted_share(rollouts.decisions).tolist(),
            "length": [len(ids) for ids in rollouts.completion_ids],
            "clipped": [float(not finished) for finished in rollouts.finished],
            "counts": [(counts.num_accepted, counts.num_drafted, counts.num_emitted, counts.num_rounds)],
        }

    def _measure_references(self, rows: Rows) -> None:
        """In a constrained run, measure the target's own reward on this device's rows that have none yet."""
        if not self.args.constrained:
            return
        repeated = [row for row in self.references.missing(rows) for _ in range(self.args.reference_generations)]
        seed = self._seed("reference", len(self.references.rewards))

        def measured() -> list[tuple[dict[str, Any], float | None]]:
            drawn = self.sampler.lossless([row["prompt"] for row in repeated], seed)
            return list(zip(repeated, self.rewards.of_rows(repeated, *drawn)["reward"]))

        self.references.add(gathered(lambda: measured() if repeated else []))

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
        local = rows[self.args.process_index :: self.args.world_size]
        self._measure_references(local)
        facts = merged(gathered(lambda: [self.evaluated(local)] if local else []))
        accepted, drafted, emitted, rounds = (sum(column) for column in zip(*facts["counts"]))
        metrics = {
            "reward": mean(known(facts["reward"])),
            "acceptance_rate": accepted / max(drafted, 1),
            "block_efficiency": emitted / max(rounds, 1),
        }
        if self.args.constrained:
            drops = known(facts["drop"])
            metrics["quality_drop"], metrics["quality_drop_error"] = mean(drops), _standard_error(drops)
        metrics["objective"] = self.constraint.objective(metrics)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluated(self, rows: Rows) -> dict[str, list]:
        prompts = [row["prompt"] for row in rows]
        size = self.args.per_device_eval_batch_size
        seed = self._seed("evaluation", 0)
        return self._facts(rows, self.sampler.relaxed(prompts, self.model, seed, size, keep_inputs=False))

    # Logs and checkpoints

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs |= {name: mean(values) for name, values in self._metrics.items()}
            self._metrics.clear()
        super().log(logs, start_time)

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
        settings = self.args.recorded()
        if self._continued_from is not None:
            settings = {name: value for name, value in settings.items() if name not in HEAD_OPTIONS}
        record = provenance(self.args.seed, self.sampler.pair.target.device) | {
            "options": self.options,
            "training": publishable(settings),
            "continued_from": self._continued_from,
            "rewards": self.rewards.names,
            "step": step,
            "validation": self._validation(step),
            "acceptance_coef": self.constraint.coef,
            "num_prompts": len(self.train_dataset),
            "num_eval_prompts": len(self.eval_dataset or ()),
            "world_size": self.args.world_size,
        }
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
        """Restore the constraint and the references from the checkpoint, but keep this run's settings."""
        super()._load_callback_state()
        self._fresh = False
        for own in (self.constraint, self.references):
            restored = next(item for item in self.callback_handler.callbacks if type(item) is type(own))
            own.continue_from(restored)
            self.callback_handler.remove_callback(restored)
            self.callback_handler.add_callback(own)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs,
    ) -> CommitInfo | None:
        """Publish the head with its training record in one commit; the first process returns it.

        `blocking` has no effect, as a head is small. `kwargs` are those of `DiversedHead.push_to_hub`.
        """
        args = self.args
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        return self.model.push_to_hub(
            self.hub_model_id or args.hub_model_id or Path(args.output_dir).absolute().name,
            training=Path(args.output_dir) / "provenance.json",
            commit_message=commit_message,
            token=token or args.hub_token,
            revision=revision or args.hub_revision,
            **({"private": args.hub_private_repo} | kwargs),
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Publish the head only: transformers would also upload pickle files."""
        if self.args.hub_strategy == HubStrategy.END:
            return
        try:
            self.push_to_hub(commit_message=f"Training in progress, step {self.state.global_step}")
        except OSError as error:
            logger.warning(f"training continues, but its head could not be published: {error}")


def check_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError if rows of a dataset cannot be trained on; `name` is that of the dataset."""
    if not len(rows):
        raise ValueError(f'{name} must hold rows with a "prompt", got no row.')
    for row in rows:
        if "prompt" not in row:
            raise ValueError(f'{name} must hold rows with a "prompt", got one with {sorted(row)}.')
        if "completions" in row:
            raise ValueError(f"{name} must not have a column 'completions', which rewards receive; rename the column.")


def load_frozen(model: PreTrainedModel | str, args: DiversedConfig) -> PreTrainedModel:
    """Return a model in eval mode and without gradients. A name is loaded onto the device of this process.

    Raises:
        ValueError: for `model_init_kwargs` that are not a dict, or with a loaded model, which they would not change.
    """
    if isinstance(model, str):
        init_kwargs = args.model_init_kwargs or {}
        if isinstance(init_kwargs, str):
            raise ValueError(f"model_init_kwargs must be a JSON object or a dict, got {init_kwargs!r}.")
        options = {"dtype": "auto", "device_map": {"": args.device}} | init_kwargs
        model = AutoModelForCausalLM.from_pretrained(model, **options)
    elif args.model_init_kwargs:
        raise ValueError(
            f"model_init_kwargs={args.model_init_kwargs} has no effect on the loaded {type(model).__name__}; leave it "
            "out, or pass the model's name."
        )
    return model.eval().requires_grad_(False)


def target_tokenizer(target: PreTrainedModel | str) -> PreTrainedTokenizerBase:
    """Return the target's tokenizer, padding on the left."""
    name = target if isinstance(target, str) else support.base_model(target).name_or_path
    if not name:
        raise ValueError("the tokenizer cannot be found for a target without a name; pass processing_class=.")
    return load_tokenizer(name)


def fresh_head(target: PreTrainedModel, draft: PreTrainedModel | None, args: DiversedConfig) -> DiversedHead:
    """Return a new head for a pair; without a draft model, one for prompt lookup."""
    if draft is None and args.head_features != "distribution":
        raise ValueError(
            'draft tokens from prompt lookup have no hidden states, so head_features must be "distribution", got '
            f"{args.head_features!r}."
        )
    config = DiversedHeadConfig.for_pair(
        target,
        draft,
        head_type=args.head_type,
        features=args.head_features,
        token_features=args.token_features,
        num_assistant_tokens=args.num_assistant_tokens,
        training_temperature=args.temperature,
    )
    # On the CPU only: torch.manual_seed would also seed CUDA's generators, which fork_rng([]) does not restore.
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(args.seed)
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


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
