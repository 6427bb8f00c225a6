"""`hf-diversed tune-draft`: tune the draft model of a pair on a task, by default as a LoRA adapter."""

import sys
from contextlib import redirect_stdout
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel

from hf_diversed.cli.models import check_dtype, check_pair, check_two_models
from hf_diversed.cli.options import parse_options, read_records, resume_point_of, supervised_rows
from hf_diversed.cli.preparing import check_new_folder, remove_earlier_run
from hf_diversed.cli.terminal import console, interruptible
from hf_diversed.cli.train import pair_options
from hf_diversed.cli.train_options import TuneDraftArguments
from hf_diversed.tasks import get_task
from hf_diversed.tasks.rows import prompt_rows
from hf_diversed.training.draft_tuning import DraftTuningConfig, tune_draft


def tune(argv: list[str]) -> PeftModel | PreTrainedModel:
    """Parse options, tune, and save the result in `output_dir`; standard output receives only that name."""
    arguments, config = parse_options(
        (TuneDraftArguments, DraftTuningConfig), argv, "hf-diversed tune-draft", output_dir="tuned-draft"
    )
    start = resume_point_of(config.resume_from_checkpoint, config.resume)
    config.resume, config.resume_from_checkpoint = start is True, start if isinstance(start, str) else None
    check_pair(arguments.target, arguments.draft)
    check_two_models(arguments.draft)
    check_dtype(arguments.dtype)
    folder, first = Path(config.output_dir), config.process_index == 0
    if first:
        inputs = (arguments.target, arguments.draft)
        check_new_folder("--output-dir", folder, arguments.overwrite, inputs, resume=start is not None)
    task = get_task(arguments.task)
    n, n_eval = arguments.num_examples, arguments.num_eval_examples
    if n_eval < 0 or (n_eval > 0) != (config.eval_strategy != "no"):
        raise ValueError(
            f"--num-eval-examples and --eval-strategy go together, got {n_eval} and {config.eval_strategy.value}: "
            "hold some prompts out and say how often to look at them, or leave out both."
        )
    records = read_records(task, "train", n + n_eval, config.seed, arguments.data_file)
    n_eval = min(n_eval, len(records) // 2)  # a small file is halved
    if config.mode == "supervised":
        rows = supervised_rows(task, records, arguments.shots, arguments.chat)
    else:  # the target generates the completions; some tasks have no references
        rows = prompt_rows(task, records, pool=records, shots=arguments.shots, chat=arguments.chat)
    again = "Run the same command with --resume to continue from the newest complete checkpoint."
    with interruptible(again), redirect_stdout(sys.stderr):  # output of the trainer
        pair = pair_options(arguments.target, arguments.draft, arguments.dtype, config)
        stop_strings = () if arguments.chat else task.stop_strings
        split = len(rows) - n_eval
        if first and arguments.overwrite:
            remove_earlier_run(folder)
        tuned = tune_draft(
            pair["target"], pair["draft"], pair["processing_class"], rows[:split], config, stop_strings, rows[split:]
        )
    if first:
        console.print(config.output_dir, markup=False, highlight=False, soft_wrap=True)
    return tuned
