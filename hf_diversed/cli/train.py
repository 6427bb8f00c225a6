"""`hf-diversed train`: a task, a pair and a few numbers to a head in a folder."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import check_pair, parse_options, read_records
from hf_diversed.head import DiversedHead
from hf_diversed.tasks import TASKS, Task, get_task
from hf_diversed.tasks.rewards import load_reward
from hf_diversed.tasks.rows import prompt_rows
from hf_diversed.training import DiversedConfig, DiversedTrainer


DEFAULTS = {"eval_strategy": "steps", "load_best_model_at_end": True, "output_dir": "head"}


@dataclass
class TrainArguments:
    """What to train on."""

    task: str = field(metadata={"help": f"One of {', '.join(TASKS)}."})
    target: str | None = field(default=None, metadata={"help": "Hub id or folder; the embedded pair if left out."})
    draft: str | None = field(default=None, metadata={"help": "Hub id or folder of the draft."})
    head: str | None = field(default=None, metadata={"help": "Hub id or folder of a head to go on from."})
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": '"task:NAME" or package.module.function; the score of the task by default.'}
    )
    data_file: str | None = field(default=None, metadata={"help": "JSON Lines in the task's columns, for training."})
    eval_data_file: str | None = field(default=None, metadata={"help": "The same for held-out prompts."})
    eval_split: str = field(default="validation", metadata={"help": "Split of the held-out prompts."})
    num_prompts: int = field(default=1024, metadata={"help": "Training prompts; all of a smaller data file."})
    num_eval_prompts: int = field(default=1024, metadata={"help": "Held-out prompts that choose the best head."})
    shots: int = field(default=0, metadata={"help": "Solved examples before every prompt."})
    chat: bool = field(default=False, metadata={"help": "Prompts in the tokenizer's chat template."})
    resume: bool = field(default=False, metadata={"help": "Go on from the newest complete checkpoint."})
    allow_code_execution: bool = field(default=False, metadata={"help": "Let code tasks run completions, isolated."})
    unsafe_code_execution: bool = field(default=False, metadata={"help": "Also where nothing isolates them."})


def train(argv: list[str]) -> DiversedTrainer:
    """Parse, train, and leave the head in `output_dir`."""
    arguments, config = parse_options((TrainArguments, DiversedConfig), argv, "hf-diversed train", **DEFAULTS)
    trainer = build_trainer(arguments, config)
    trainer.train(resume_from_checkpoint=config.resume_from_checkpoint or arguments.resume or None)
    trainer.save_model(config.output_dir)
    trainer.save_state()
    return trainer


def build_trainer(arguments: TrainArguments, config: DiversedConfig) -> DiversedTrainer:
    """Load pair, records and rewards."""
    check_pair(arguments.target, arguments.draft)
    execution = {
        "allow_code_execution": arguments.allow_code_execution,
        "unsafe_code_execution": arguments.unsafe_code_execution,
    }
    task = get_task(arguments.task, **execution)
    if arguments.reward_funcs is None:
        task.check_scoring()
    train_rows, eval_rows = load_rows(arguments, task, config.seed, held_out=config.eval_strategy != "no")
    models: dict[str, Any] = {"target": arguments.target, "draft": arguments.draft}
    if arguments.target is None:
        pair = load_pair(None, None, config.device)
        models = {"target": pair.target, "draft": pair.draft, "processing_class": pair.tokenizer}
    names = arguments.reward_funcs or [f"task:{task.name}"]
    return DiversedTrainer(
        **models,
        head=None if arguments.head is None else DiversedHead.from_pretrained(arguments.head),
        reward_funcs=[load_reward(name, **execution) for name in names],
        args=config,
        train_dataset=train_rows,
        eval_dataset=eval_rows,
        task=task.name,
        stop_strings=() if arguments.chat else task.stop_strings,
    )


def load_rows(
    arguments: TrainArguments, task: Task, seed: int, held_out: bool
) -> tuple[list[dict], list[dict] | None]:
    """Rows to train on and held-out rows, disjoint also where both come from the training split or one file."""
    n, n_eval = arguments.num_prompts, arguments.num_eval_prompts if held_out else 0
    shared = n_eval and not arguments.eval_data_file and (arguments.data_file or arguments.eval_split == "train")
    records = read_records(task, "train", n + n_eval if shared else n, seed, arguments.data_file)
    if shared:
        n_eval = min(n_eval, len(records) // 2)  # a small file is halved
        records, evaluation = records[: len(records) - n_eval], records[len(records) - n_eval :]
    elif n_eval:
        evaluation = read_records(task, arguments.eval_split, n_eval, seed, arguments.eval_data_file)
    rows = partial(prompt_rows, task, pool=records, shots=arguments.shots, chat=arguments.chat)
    return rows(records), rows(evaluation) if n_eval else None
