"""Tuning of draft models towards the target model on a task, with LoRA or of all weights, on transformers' `Trainer`.

The result can be passed as `assistant_model`. This module is independent of heads and verifiers.
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hf_diversed import _compat
from hf_diversed.generation.checks import check_vocabularies
from hf_diversed.provenance import provenance, recorded_settings
from hf_diversed.running.prompts import encode, render
from hf_diversed.training.arguments import own_settings
from hf_diversed.training.checkpoints import AtomicCheckpoints, resume_point
from hf_diversed.training.completions import (
    IGNORED,
    collate,
    completion_ids,
    completion_logits,
    divergences,
)
from hf_diversed.training.loading import load_frozen
from hf_diversed.training.prompts import check_context
from hf_diversed.training.run_folder import sole_run
from hf_diversed.training.target_samples import Ids, end_ids, sample_completions, until_end
from hf_diversed.verifiers.base import check_range


Row = Mapping[str, Any]
MODES = ("distill", "supervised")
DIVERGENCES = ("kl", "tv", "lk")


@dataclass
class DraftTuningConfig(TrainingArguments):
    """`TrainingArguments` with the settings of the adapter, the loss and the sampling of target completions.

    Raises:
        ValueError: if a value is out of range, or a setting has no effect in the chosen mode.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]

    per_device_train_batch_size: int = field(default=8, metadata={"help": "Completions per device and update."})
    learning_rate: float = field(default=2e-4, metadata={"help": "Of AdamW, on the adapter."})
    lr_scheduler_type: str = field(default="cosine", metadata={"help": "Learning rate schedule, as in transformers."})

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
        metadata={"help": "Train the draft model itself instead of an adapter, for example one of low acceptance."},
    )
    lora_r: int = field(default=16, metadata={"help": "Rank of the adapter."})
    lora_alpha: int = field(default=32, metadata={"help": "Scale of the adapter is lora_alpha / lora_r."})
    lora_dropout: float = field(default=0.0, metadata={"help": "On the adapter's input."})
    lora_target_modules: list[str] = field(
        default_factory=lambda: ["all-linear"],
        metadata={"help": 'Names of the layers with an adapter; "all-linear" selects all but the output.'},
    )
    temperature: float = field(
        default=1.0, metadata={"help": "Of the target's completions, and of both distributions."}
    )
    max_completion_length: int = field(default=128, metadata={"help": "Longest completion in tokens."})
    num_samples_per_prompt: int = field(default=1, metadata={"help": "The target's completions per prompt."})
    generation_batch_size: int = field(default=128, metadata={"help": "Completions of the target drawn together."})
    merge: bool = field(
        default=False, metadata={"help": 'Also save draft model and adapter as one model, in "merged".'}
    )
    resume: bool = field(default=False, metadata={"help": "Continue from the newest complete checkpoint."})
    model_init_kwargs: dict | str | None = field(default=None, metadata={"help": "For models given by name (JSON)."})

    dataloader_pin_memory: bool = field(default=False, metadata={"help": "Off: batches are small."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Must be off: all columns are used."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.lora_target_modules, str):
            self.lora_target_modules = [self.lora_target_modules]
        for name, choices in (("mode", MODES), ("divergence", DIVERGENCES)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}.")
        for name, low, high in _RANGES:
            check_range(name, getattr(self, name), low, high)
        distill = self.mode == "distill"
        for wrong, message in (
            (self.push_to_hub, "push_to_hub must be off: publish the tuned draft with its own `push_to_hub`."),
            (
                not 0 < self.temperature < float("inf"),
                f"temperature must be above 0, got {self.temperature!r}: greedy distributions have no gradient. A "
                "draft model tuned at temperature 1 also works for greedy decoding.",
            ),
            (
                self.all_weights and self.merge,
                "merge=True needs an adapter, and all_weights=True trains none; drop one of them.",
            ),
            (
                not self.lora_target_modules,
                'lora_target_modules must name at least one layer; "all-linear" selects all.',
            ),
            (
                not distill and self.divergence != "kl",
                f'divergence={self.divergence!r} needs mode="distill", got mode="supervised", whose loss is the cross '
                "entropy of the references; drop one of them.",
            ),
            (
                distill and self.label_smoothing_factor,
                f'label_smoothing_factor needs mode="supervised", got {self.label_smoothing_factor!r} with '
                'mode="distill", which has distributions as labels; drop one of them.',
            ),
        ):
            if wrong:
                raise ValueError(message)


_RANGES = (
    ("lora_r", 1, float("inf")),
    ("lora_alpha", 1, float("inf")),
    ("lora_dropout", 0.0, 0.99),
    ("max_completion_length", 1, float("inf")),
    ("num_samples_per_prompt", 1, float("inf")),
    ("generation_batch_size", 1, float("inf")),
)


def tune_draft(
    target: PreTrainedModel | str | None,
    draft: PreTrainedModel | str,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    args: DraftTuningConfig,
    stop_strings: Sequence[str] = (),
    eval_rows: Sequence[Row] = (),
) -> PeftModel | PreTrainedModel:
    """Tune a draft model and save the result in `args.output_dir`, with `provenance.json`.

    By default a LoRA adapter is trained and saved. With `args.all_weights` the draft model itself is trained in place
    and saved with the tokenizer.

    Distillation draws completions of the target once, with plain `generate`, and stores them in
    `target_samples.jsonl` in the output folder. The adapter's layers are inserted into `draft`; its own weights do
    not change, and `unload()` on the result restores it.

    Args:
        target: the target model, not changed. Unused with `mode="supervised"`, where it may be None.
        draft: the draft model.
        tokenizer: the tokenizer of both models.
        rows: mappings with a "prompt", text or chat messages. `mode="supervised"` also needs a "completion" in text,
            to which EOS is appended.
        args: the settings of the run.
        stop_strings: strings that end a completion of the target, in addition to EOS.
        eval_rows: held-out rows in the same format. Evaluations (`args.eval_strategy`) log "eval_loss" and, in
            distillation, "eval_acceptance", the acceptance rate of a lossless verifier.

    Returns:
        The tuned draft model in eval mode, usable as `assistant_model`.

    Raises:
        ValueError: if rows lack a column or exceed a model's context, the models' vocabularies differ, the tokenizer
            has no EOS, or the samples in `output_dir` were drawn with other settings.
        OSError: if another run is training in `output_dir`, or a file there cannot be written.

    Example:
        ```python
        tuned = tune_draft(target, draft, tokenizer, rows, DraftTuningConfig("draft-math", max_steps=200))
        target.generate(**inputs, assistant_model=tuned, diversed_head=head)
        ```
    """
    if not eval_rows and args.eval_strategy != "no":
        raise ValueError(
            f"eval_strategy={str(args.eval_strategy.value)!r} needs eval_rows, got none; pass held-out rows."
        )
    if len(rows) == 0:
        raise ValueError("rows must contain at least one row, got none.")
    _check("rows", rows, tokenizer, args)
    _check("eval_rows", eval_rows, tokenizer, args)
    with sole_run(args):
        return _tune(target, draft, tokenizer, [*rows, *eval_rows], len(rows), args, stop_strings)


def _check(name: str, rows: Sequence[Row], tokenizer: PreTrainedTokenizerBase, args: DraftTuningConfig) -> None:
    columns = {"prompt"} if args.mode == "distill" else {"prompt", "completion"}
    for number, row in enumerate(rows):
        if lacking := sorted(columns - row.keys()):
            raise ValueError(f"{name}[{number}] lacks {', '.join(map(repr, lacking))}; it has {sorted(row)}.")
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer must have an EOS token, which ends completions, got none; set one.")


def _tune(target, draft, tokenizer, rows, num_train: int, args: DraftTuningConfig, stop_strings):
    """Tune on the first `num_train` rows; evaluate on the others."""
    draft, folder = load_frozen(draft, args), Path(args.output_dir)
    if args.mode == "distill":
        if target is None:
            raise ValueError('mode="distill" needs a target; pass one, or use mode="supervised".')
        target = load_frozen(target, args)
        check_vocabularies(target, draft)
        per_row = _drawn_examples(target, draft, tokenizer, rows, args, stop_strings)
    else:
        target, per_row = None, _written_examples(draft, tokenizer, rows, args)
    split = sum(map(len, per_row[:num_train]))
    examples = list(itertools.chain(*per_row))
    model = draft.requires_grad_(True) if args.all_weights else _with_adapter(draft, args)
    trainer = DraftTuner(model, target, args, examples[:split], examples[split:] or None)
    start = args.resume_from_checkpoint or (resume_point(folder) if args.resume else None)
    trainer.train(resume_from_checkpoint=start)
    trainer.save_model()
    trainer.save_state()
    if args.should_save and args.all_weights:
        tokenizer.save_pretrained(folder)
    elif args.should_save and args.merge:
        # Merge a copy: unmerging leaves rounding errors in the draft model.
        copy.deepcopy(model).merge_and_unload().save_pretrained(folder / "merged")
        tokenizer.save_pretrained(folder / "merged")
    return (model.requires_grad_(False) if args.all_weights else model).eval()


def _drawn_examples(target, draft, tokenizer, rows, args: DraftTuningConfig, stop_strings) -> list[list[dict]]:
    """Return for each row the examples with the target's completions."""
    prompts = [_encode_prompt(tokenizer, row) for row in rows]
    models = {"target": target, "draft": draft}
    check_context("rows", [len(prompt) for prompt in prompts], args.max_completion_length, models)
    completions = sample_completions(target, tokenizer, prompts, args, stop_strings)
    return [[_example(prompt, ids) for ids in completions[prompt]] for prompt in prompts]


def _written_examples(draft, tokenizer, rows, args: DraftTuningConfig) -> list[list[dict]]:
    """Return for each row the example with its reference, which ends with EOS unless it is truncated."""
    end, examples = end_ids(draft, tokenizer), []
    for row in rows:
        ids = until_end(tokenizer(_reference(tokenizer, row), add_special_tokens=False).input_ids, end)
        if not ids or ids[-1] not in end:
            ids = (*ids, end[0])
        examples.append(_example(_encode_prompt(tokenizer, row), ids[: args.max_completion_length]))
    known, largest = _compat.known_ids(draft), max(max(example["input_ids"]) for example in examples)
    if largest >= known:
        raise ValueError(
            f"token ids must be below {known}, the number of ids that the draft model can embed, got {largest}: use "
            "the tokenizer of the draft model."
        )
    lengths = [example["labels"].count(IGNORED) for example in examples]
    check_context("rows", lengths, args.max_completion_length, {"draft": draft})
    return [[example] for example in examples]


def _reference(tokenizer: PreTrainedTokenizerBase, row: Row) -> str:
    """Return the reference as text that follows the prompt, which a chat template may have formatted."""
    prompt, reference = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        return reference
    opened = render(tokenizer, prompt)
    turn = render(tokenizer, [*prompt, {"role": "assistant", "content": reference}], False)
    if not turn.startswith(opened):
        raise ValueError(
            "answers formatted by the chat template do not start with the prompt that it formats, so references "
            'cannot be separated from prompts; use plain prompts, or mode="distill".'
        )
    return turn[len(opened) :]


def _encode_prompt(tokenizer: PreTrainedTokenizerBase, row: Row) -> Ids:
    return tuple(encode(tokenizer, [row["prompt"]])[0])


def _example(prompt: Ids, completion: Ids) -> dict[str, list[int]]:
    return {"input_ids": [*prompt, *completion], "labels": [IGNORED] * len(prompt) + list(completion)}


def _with_adapter(draft: PreTrainedModel, args: DraftTuningConfig) -> PeftModel:
    names = args.lora_target_modules
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=args.lora_r,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules="all-linear" if names == ["all-linear"] else names,
    )
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)
        return get_peft_model(draft, lora)


class DraftTuner(AtomicCheckpoints):
    """A `Trainer` for the mean cross entropy or divergence over the completion tokens of a batch.

    Checkpoints are atomic. With an adapter, they contain only the adapter.

    Args:
        model: the draft model with its adapter, or without one to train all weights.
        target: the frozen target model; None in supervised mode.
        examples: `input_ids` and `labels`, lists of equal length.
        held_out: examples for evaluation, in the same format.
    """

    def __init__(
        self,
        model: PeftModel | PreTrainedModel,
        target: PreTrainedModel | None,
        args: DraftTuningConfig,
        examples: list[dict],
        held_out: list[dict] | None = None,
    ):
        super().__init__(model, args, data_collator=collate, train_dataset=examples, eval_dataset=held_out)
        self.target = target
        self.model_accepts_loss_kwargs = False
        self._acceptance: list[float] = []
        self._held_out: list[torch.Tensor] = []

    def compute_loss(self, model, inputs, return_outputs: bool = False, num_items_in_batch=None):
        """Return the loss of one batch, and the logits of the draft model if `return_outputs`."""
        draft_logits = completion_logits(model, inputs, self.model)
        if self.target is None:
            smoothing = self.args.label_smoothing_factor
            loss = cross_entropy(draft_logits.float(), completion_ids(inputs), label_smoothing=smoothing)
        else:
            with torch.no_grad():
                target_logits = completion_logits(self.target, inputs, self.target)
            kind = self.args.divergence
            distances = divergences(target_logits.to(draft_logits.device), draft_logits, self.args.temperature, kind)
            loss, accepted = distances[kind].mean(), 1.0 - distances["tv"].detach()
            if model.training:
                self._acceptance.append(accepted.mean().item())
            else:
                self._held_out.append(accepted.cpu())
        return (loss, {"logits": draft_logits}) if return_outputs else loss

    def evaluation_loop(self, *args, metric_key_prefix: str = "eval", **kwargs):
        """Evaluate as `Trainer` does, and add the mean acceptance over the held-out tokens of this process."""
        self._held_out.clear()
        output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self._held_out:
            output.metrics[f"{metric_key_prefix}_acceptance"] = torch.cat(self._held_out).mean().item()
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._acceptance:
            logs["acceptance"] = sum(self._acceptance) / len(self._acceptance)
            self._acceptance.clear()
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict=None) -> None:
        """Save the adapter or the draft model with its provenance, without pickle files."""
        folder = Path(output_dir or self.args.output_dir)
        if self.args.all_weights:
            self.model.save_pretrained(folder)
        else:
            card = folder / "README.md"
            written_by_user = card.exists()
            self.model.save_pretrained(folder, save_embedding_layers=False)  # "auto" would query the Hub
            if not written_by_user:
                card.unlink(missing_ok=True)  # peft's card is an empty template with a local path
        record = provenance(self.args.seed, self.model.device) | {
            "tuning": recorded_settings(own_settings(self.args)),
            "target": None if self.target is None else _compat.public_name(self.target),
            "draft": _compat.public_name(self.model),
            "step": self.state.global_step,
            "num_completions": len(self.train_dataset),
            "world_size": self.args.world_size,
        }
        (folder / "provenance.json").write_text(json.dumps(record, indent=2, default=str) + "\n")
