"""`hf-diversed train`: train a head for a pair on a task."""

import random
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from hf_diversed.cli.models import (
    LOOKUP,
    check_chat,
    check_dtype,
    check_pair,
    check_together,
    load_pair,
    naming_model,
)
from hf_diversed.cli.options import TrainOptions
from hf_diversed.cli.preparing import (
    check_new_folder,
    naming_records,
    read_records,
    remove_earlier_run,
)
from hf_diversed.cli.terminal import console, interruptible
from hf_diversed.harness.pair import load_tokenizer
from hf_diversed.head import DiversedHead
from hf_diversed.provenance import publishable
from hf_diversed.tasks import Task, get_task
from hf_diversed.tasks.prompted import prompt_rows
from hf_diversed.tasks.rewards import load_reward
from hf_diversed.training import DiversedConfig, DiversedTrainer
from hf_diversed.training.arguments import check_no_head_options
from hf_diversed.training.run_folder import sole_run


def train(options: TrainOptions, config: DiversedConfig) -> DiversedTrainer:
    """Train a head and save it in `output_dir`; standard output receives only the folder's name."""
    start = resume_point_of(config.resume_from_checkpoint, options.resume)
    folder, first = Path(config.output_dir), config.process_index == 0
    if first:
        inputs = (options.target, options.draft, options.head)
        check_new_folder(folder, options.overwrite, inputs, resume=start is not None)
    how = "--resume instead of --overwrite" if options.overwrite else "--resume"
    advice = f"Run the same command with {how} to continue from the newest complete checkpoint."
    with interruptible(advice), redirect_stdout(sys.stderr):  # output of the trainer and rewards
        trainer = build_trainer(options, config)
        trainer.options = publishable(vars(options))
        if options.overwrite:
            with sole_run(config):  # in every process, as it broadcasts errors; train() locks the folder again
                if first:
                    remove_earlier_run(folder)
        trainer.train(resume_from_checkpoint=start)
        trainer.save_model(config.output_dir)
        trainer.save_state()
    if first:
        console.print(config.output_dir, markup=False, highlight=False, soft_wrap=True)
    return trainer


def build_trainer(options: TrainOptions, config: DiversedConfig) -> DiversedTrainer:
    """Load records, rewards, head and pair, and build the trainer."""
    check_pair(options.target, options.draft)
    check_dtype(options.dtype)
    if options.head is not None:
        check_no_head_options(config)
    if options.eval_split not in (None, "train") and (options.data_file or options.eval_data_file):
        raise ValueError(
            f"--eval-split {options.eval_split} has no effect with --data-file or --eval-data-file; leave it out."
        )
    execution = {
        "allow_code_execution": options.allow_code_execution,
        "allow_unsafe_code_execution": options.allow_unsafe_code_execution,
    }
    task = get_task(options.task, **execution)
    names = options.reward_funcs or [f"task:{task.name}"]
    rewards = [load_reward(name, **execution) for name in names]
    head = None if options.head is None else DiversedHead.from_pretrained(options.head)
    train_rows, eval_rows = load_rows(options, task, config.seed, held_out=config.eval_strategy != "no")
    return DiversedTrainer(
        **pair_options(options, config),
        head=head,
        reward_funcs=rewards,
        args=config,
        train_dataset=train_rows,
        eval_dataset=eval_rows,
        task=task.name,
        stop_strings=() if options.chat else task.stop_strings,
    )


def pair_options(options: TrainOptions, config: Any) -> dict[str, Any]:
    """Return target, draft and tokenizer for a trainer: those of the embedded pair, or names after checking them."""
    target, draft, dtype = options.target, options.draft, options.dtype
    if target is None or draft is None:
        pair = load_pair(None, None, config.device, options.chat, dtype)
        return {"target": pair.target, "draft": pair.draft, "processing_class": pair.tokenizer}
    named = None if draft == LOOKUP else draft
    with naming_model("target model", target):
        tokenizer = load_tokenizer(target)
    check_chat(tokenizer, options.chat)
    if named is not None:
        check_together(target, named, tokenizer)
    if dtype is not None:
        config.model_init_kwargs = {**(config.model_init_kwargs or {}), "dtype": dtype}
    return {"target": target, "draft": named, "processing_class": tokenizer}


def load_rows(options: TrainOptions, task: Task, seed: int, held_out: bool) -> tuple[list[dict], list[dict] | None]:
    """Return training and held-out rows. They are disjoint even if they come from the same split or file."""
    n, n_eval = options.num_examples, options.num_eval_examples if held_out else 0
    split = options.eval_split or ("validation" if "validation" in task.splits else "train")
    files = [name and Path(name).resolve() for name in (options.data_file, options.eval_data_file)]
    one_source = files[1] in (None, files[0]) and (files[0] is not None or split == "train")
    shared = one_source and n_eval > 0
    with naming_records("`num_examples` + `num_eval_examples`" if shared else "`num_examples`"):
        records = read_records(task, "train", n + n_eval if shared else n, seed, options.data_file)
    if shared:
        random.Random(seed).shuffle(records)  # a file may be sorted
        n_eval = min(n_eval, len(records) // 2)  # a small file is halved
        records, evaluation = records[: len(records) - n_eval], records[len(records) - n_eval :]
    elif n_eval:
        with naming_records("`num_eval_examples`", "eval_split"):
            evaluation = read_records(task, split, n_eval, seed, options.eval_data_file)
    rows = partial(prompt_rows, task, pool=records, shots=options.shots, chat=options.chat)
    return rows(records), rows(evaluation) if n_eval else None


def resume_point_of(checkpoint: str | bool | None, resume: bool) -> str | bool | None:
    """Return where a run continues: a checkpoint's folder, True for the newest complete one, None for the start.

    Args:
        checkpoint: a folder, or "true" as in scripts of transformers.

    Raises:
        ValueError: if the path is not a folder.
    """
    text = "" if checkpoint is None else str(checkpoint)
    if text.lower() in ("", "false", "true"):
        return True if resume or text.lower() == "true" else None
    if not Path(text).is_dir():
        raise ValueError(
            f"--resume-from-checkpoint must name an existing folder, got {text!r}; --resume continues from "
            "the newest complete checkpoint in --output-dir."
        )
    return text
