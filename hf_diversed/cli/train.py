"""`hf-diversed train`: a task, a pair and a few numbers to a head in a folder."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from hf_diversed.head import DiversedHead
from hf_diversed.tasks import TASKS, Task, get_task
from hf_diversed.tasks.loading import load_records
from hf_diversed.tasks.rewards import load_reward
from hf_diversed.tasks.rows import prompt_rows
from hf_diversed.training import DiversedConfig, DiversedTrainer
from hf_diversed.zoo import load_demo_pair


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
    arguments, config = parse(argv)
    trainer = build_trainer(arguments, config)
    trainer.train(resume_from_checkpoint=arguments.resume or None)
    trainer.save_model(config.output_dir)
    trainer.save_state()
    return trainer


def parse(argv: list[str]) -> tuple[TrainArguments, DiversedConfig]:
    """Read the options; `--config run.yaml` gives defaults in their names, and the command line wins.

    Raises:
        ValueError: for an option in the file that does not exist.
    """
    parser = HfArgumentParser((TrainArguments, DiversedConfig), prog="hf-diversed train")
    parser.add_argument("--config", help="YAML file with any of these options.")
    parser.set_defaults(eval_strategy="steps", load_best_model_at_end=True, output_dir="head")
    if "--config" in argv:
        defaults = _read_config(argv[argv.index("--config") + 1])
        known = {action.dest for action in parser._actions}
        if unknown := sorted(set(defaults) - known):
            raise ValueError(f"the config names options that do not exist: {', '.join(unknown)}; see --help.")
        parser.set_defaults(**defaults)
        for action in parser._actions:
            action.required = action.required and action.dest not in defaults
    arguments, config, _ = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    return arguments, config


def build_trainer(arguments: TrainArguments, config: DiversedConfig) -> DiversedTrainer:
    """Load pair, records and rewards."""
    if (arguments.target is None) != (arguments.draft is None):
        raise ValueError("--target and --draft go together: pass both, or neither for the embedded pair.")
    execution = {
        "allow_code_execution": arguments.allow_code_execution,
        "unsafe_code_execution": arguments.unsafe_code_execution,
    }
    task = get_task(arguments.task, **execution)
    train_rows, eval_rows = load_rows(arguments, task, config.seed, held_out=config.eval_strategy != "no")
    models: dict[str, Any] = {"target": arguments.target, "draft": arguments.draft}
    if arguments.target is None:
        pair = load_demo_pair()
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
    records = _load(task, "train", n + n_eval if shared else n, seed, arguments.data_file)
    if shared:
        n_eval = min(n_eval, len(records) // 2)  # a small file is halved
        records, evaluation = records[: len(records) - n_eval], records[len(records) - n_eval :]
    elif n_eval:
        evaluation = _load(task, arguments.eval_split, n_eval, seed, arguments.eval_data_file)
    rows = partial(prompt_rows, task, pool=records, shots=arguments.shots, chat=arguments.chat)
    return rows(records), rows(evaluation) if n_eval else None


def _load(task: Task, split: str, n: int, seed: int, data_file: str | None) -> list[dict]:
    """At most `n` records: a file may have fewer."""
    if data_file is not None:
        n = min(n, len(load_records(task, split, data_file=data_file)))
    return load_records(task, split, n, seed, data_file)


def _read_config(path: str) -> dict[str, Any]:
    found = yaml.safe_load(Path(path).read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a mapping from option to value.")
    return found
