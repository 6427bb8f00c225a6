"""`hf-diversed train`: train a head for a task and a pair."""

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from hf_diversed.cli.models import LOOKUP, check_dtype, check_pair, check_together, load_pair, naming_model
from hf_diversed.cli.options import parse_options, read_records, resume_point_of
from hf_diversed.cli.preparing import check_new_folder, remove_earlier_run
from hf_diversed.cli.terminal import console, interruptible
from hf_diversed.cli.train_options import TrainArguments
from hf_diversed.head import DiversedHead
from hf_diversed.tasks import Task, get_task
from hf_diversed.tasks.rewards import load_reward
from hf_diversed.tasks.rows import prompt_rows
from hf_diversed.training import DiversedConfig, DiversedTrainer
from hf_diversed.training.loading import load_tokenizer
from hf_diversed.zoo import packaged


DEFAULTS = {"eval_strategy": "steps", "load_best_model_at_end": True, "output_dir": "head"}


def train(argv: list[str]) -> DiversedTrainer:
    """Parse options, train, and save the head in `output_dir`; standard output receives only that name."""
    arguments, config = parse_options((TrainArguments, DiversedConfig), argv, "hf-diversed train", **DEFAULTS)
    start = resume_point_of(config.resume_from_checkpoint, arguments.resume)
    folder, first = Path(config.output_dir), config.process_index == 0
    if first:
        inputs = (arguments.target, arguments.draft, arguments.head)
        check_new_folder("--output-dir", folder, arguments.overwrite, inputs, resume=start is not None)
    again = "Run the same command with --resume to continue from the newest complete checkpoint."
    with interruptible(again), redirect_stdout(sys.stderr):  # output of the trainer and rewards
        trainer = build_trainer(arguments, config)
        if first and arguments.overwrite:
            remove_earlier_run(folder)
        trainer.train(resume_from_checkpoint=start)
        trainer.save_model(config.output_dir)
        trainer.save_state()
    if first:
        console.print(config.output_dir, markup=False, highlight=False, soft_wrap=True)
    return trainer


def build_trainer(arguments: TrainArguments, config: DiversedConfig) -> DiversedTrainer:
    """Load records, rewards, head and pair, and build the trainer."""
    check_pair(arguments.target, arguments.draft)
    check_dtype(arguments.dtype)
    execution = {
        "allow_code_execution": arguments.allow_code_execution,
        "unsafe_code_execution": arguments.unsafe_code_execution,
    }
    task = get_task(arguments.task, **execution)
    if arguments.reward_funcs is None:
        task.check_scoring()
    names = arguments.reward_funcs or [f"task:{task.name}"]
    rewards = [load_reward(name, **execution) for name in names]
    head = None if arguments.head is None else DiversedHead.from_pretrained(arguments.head)
    train_rows, eval_rows = load_rows(arguments, task, config.seed, held_out=config.eval_strategy != "no")
    if arguments.reward_funcs is None:
        task.check_scoring([*train_rows, *(eval_rows or [])])
    return DiversedTrainer(
        **pair_options(arguments.target, arguments.draft, arguments.dtype, config),
        head=head,
        reward_funcs=rewards,
        args=config,
        train_dataset=train_rows,
        eval_dataset=eval_rows,
        task=task.name,
        stop_strings=() if arguments.chat else task.stop_strings,
    )


def pair_options(target: str | None, draft: str | None, dtype: str | None, config: Any) -> dict[str, Any]:
    """Return target, draft and tokenizer for a trainer: the embedded ones, or names with compatible shapes."""
    if target is None or draft is None:
        pair = load_pair(None, None, config.device, dtype=dtype)
        return {"target": pair.target, "draft": pair.draft, "processing_class": pair.tokenizer}
    target, named = packaged.resolve(target), None if draft == LOOKUP else packaged.resolve(draft)
    with naming_model("--target", target):
        tokenizer = load_tokenizer(target)
    if named is not None:
        check_together(target, named, tokenizer)
    if dtype is not None:
        config.model_init_kwargs = {**(config.model_init_kwargs or {}), "dtype": dtype}
    return {"target": target, "draft": named, "processing_class": tokenizer}


def load_rows(
    arguments: TrainArguments, task: Task, seed: int, held_out: bool
) -> tuple[list[dict], list[dict] | None]:
    """Return training and held-out rows, disjoint also if both come from the training split or one file."""
    n, n_eval = arguments.num_examples, arguments.num_eval_examples if held_out else 0
    shared = n_eval and not arguments.eval_data_file and (arguments.data_file or arguments.eval_split == "train")
    records = read_records(task, "train", n + n_eval if shared else n, seed, arguments.data_file)
    if shared:
        n_eval = min(n_eval, len(records) // 2)  # a small file is halved
        records, evaluation = records[: len(records) - n_eval], records[len(records) - n_eval :]
    elif n_eval:
        evaluation = read_records(task, arguments.eval_split, n_eval, seed, arguments.eval_data_file)
    rows = partial(prompt_rows, task, pool=records, shots=arguments.shots, chat=arguments.chat)
    return rows(records), rows(evaluation) if n_eval else None
