"""`hf-diversed train`: transformers' `HfArgumentParser` reads its options, from a recipe and the command line."""

import json
import random
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from hf_diversed.cli.options import Debug, notes


if TYPE_CHECKING:
    from hf_diversed.tasks import Task
    from hf_diversed.training import DiversedConfig, DiversedTrainer


def option(default: Any, help: str) -> Any:
    """Return a dataclass field with a text for `--help`."""
    return field(default=default, metadata={"help": help})


@dataclass
class TrainArguments:
    """The pair, the prompts and the rewards of a training run, in addition to `DiversedConfig`."""

    task: str = field(metadata={"help": "Name of the task: math, summary, code, gsm8k, mbpp ..."})
    target: str | None = option(None, "Hub id or folder of the target model; by default the embedded pair.")
    draft: str | None = option(None, "Hub id or folder of the draft model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = option(
        None, "auto, float32, bfloat16 or float16; by default that of the saved weights."
    )
    head: str | None = option(None, "Hub id or folder of a head to start from; options of a new head are not used.")
    reward_funcs: list[str] | None = option(
        None, '"task:NAME" or package.module.function; by default the score of the task.'
    )
    data_file: str | None = option(None, "JSON Lines file with the task's columns, used instead of the split.")
    eval_data_file: str | None = option(None, "JSON Lines file of held-out prompts.")
    eval_split: str | None = option(
        None,
        "Split of the held-out prompts, without data files; by default validation if the task has it, else unused "
        "records of the training split.",
    )
    num_examples: int = option(1024, "Number of training prompts; a smaller data file is used whole.")
    num_eval_examples: int = option(1024, "Number of held-out prompts that choose the best head.")
    shots: int = option(0, "Solved examples before each prompt.")
    chat: bool = option(False, "Apply the tokenizer's chat template, without stop strings.")
    allow_code_execution: bool = option(False, "Let code tasks run completions, isolated by bubblewrap.")
    allow_unsafe_code_execution: bool = option(
        False, "Let code tasks run completions without isolation, in a container."
    )


class TrainCommand(TyperCommand):
    """Adds the options of the recipe to the help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        from hf_diversed.training import DiversedConfig

        super().format_options(ctx, formatter)
        ours = [*fields(TrainArguments), *DiversedConfig.own_fields()]
        shown = [(f"--{item.name.replace('_', '-')}", item.metadata["help"]) for item in ours]
        with formatter.section(
            "In the recipe, or as --name value; also all options of transformers' TrainingArguments"
        ):
            formatter.write_dl(shown)


def train(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="YAML recipe; see examples/recipes.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Train a head for a pair on a task, and save it in output_dir.

    The command line takes precedence over the recipe. Standard output receives only the name of the folder. Add
    --resume-from-checkpoint true to continue a run.
    """
    import sys
    from contextlib import redirect_stdout

    from hf_diversed.cli.loading import quiet_transformers

    quiet_transformers()
    arguments, settings = parse(context.args, config)
    folder, resume = Path(settings.output_dir), settings.resume_from_checkpoint
    if resume is None and ((folder / "config.json").exists() or any(folder.glob("checkpoint-*"))):
        raise ValueError(
            f"output_dir {folder} holds an earlier run: pass --resume-from-checkpoint true to continue it, or another "
            "--output-dir."
        )
    with redirect_stdout(sys.stderr):  # output of the trainer and of rewards
        trainer = build_trainer(arguments, settings)
        batches = settings.max_steps // settings.num_iterations
        notes.print(
            f"{settings.max_steps} updates on {batches} batches of {settings.per_device_train_batch_size} rollouts, "
            f"with {len(trainer.train_dataset)} training and {len(trainer.eval_dataset or ())} held-out prompts.",
            highlight=False,
        )
        trainer.train(resume_from_checkpoint=True if resume in ("true", "True") else resume)
        trainer.save_model(settings.output_dir)
        trainer.save_state()
    if settings.should_save:  # one of several processes
        print(settings.output_dir)


def parse(words: list[str], config: Path | None = None) -> "tuple[TrainArguments, DiversedConfig]":
    """Return the arguments of a command line and a YAML recipe, which is read as if written on the command line.

    Raises:
        ValueError: if an option is missing, unknown, or has a wrong value.
    """
    import yaml
    from transformers import HfArgumentParser

    from hf_diversed.training import DiversedConfig

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise ValueError(message)

    parser = Parser((TrainArguments, DiversedConfig), add_help=False, allow_abbrev=False)
    parser.set_defaults(
        output_dir="head", eval_strategy="steps", load_best_model_at_end=True, max_completion_length=None
    )
    try:
        recipe = {} if config is None else yaml.safe_load(config.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{config} is not valid YAML: {error}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{config} must hold options of `hf-diversed train`, one `name: value` per line.")
    written: list[str] = []
    for name, value in recipe.items():
        if value is not None:  # null keeps the default
            values = value if isinstance(value, list) else [value]
            as_words = (item if isinstance(item, str) else json.dumps(item, default=str) for item in values)
            written += [f"--{name}", *as_words]
    arguments, settings, more = parser.parse_args_into_dataclasses(
        [*written, *words], look_for_args_file=False, return_remaining_strings=True
    )
    if more:
        raise ValueError(f"no such option or argument: {more[0]}; see `hf-diversed train --help`.")
    return arguments, settings


def build_trainer(arguments: TrainArguments, settings: "DiversedConfig") -> "DiversedTrainer":
    """Load records, rewards, head and pair, and build the trainer."""
    from hf_diversed.cli.loading import load_task
    from hf_diversed.head import DiversedHead
    from hf_diversed.provenance import publishable
    from hf_diversed.training import DiversedTrainer
    from hf_diversed.training.rewards import load_reward
    from hf_diversed.zoo import load_pair

    execution = {"allow_code_execution": arguments.allow_code_execution}
    execution["allow_unsafe_code_execution"] = arguments.allow_unsafe_code_execution
    task = load_task(arguments.task, *execution.values())
    if settings.max_completion_length is None:  # not given
        settings.max_completion_length = task.max_new_tokens
    rewards = [load_reward(name, **execution) for name in arguments.reward_funcs or [f"task:{task.name}"]]
    rows, held_out = load_rows(arguments, task, settings.seed, held_out=settings.eval_strategy != "no")
    head = None if arguments.head is None else DiversedHead.from_pretrained(arguments.head)
    pair = load_pair(arguments.target, arguments.draft, settings.device, arguments.dtype)
    if pair.draft is None:
        raise ValueError("training needs a draft model: it does not support prompt lookup.")
    trainer = DiversedTrainer(
        pair.target,
        pair.draft,
        head,
        reward_funcs=rewards,
        args=settings,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=pair.tokenizer,
        task=task.name,
        stop_strings=() if arguments.chat else task.stop_strings,
    )
    trainer.options = publishable(vars(arguments))
    return trainer


def load_rows(
    arguments: TrainArguments, task: "Task", seed: int, held_out: bool
) -> tuple[list[dict], list[dict] | None]:
    """Return training and held-out rows. They are disjoint even if they come from the same split or file."""
    from hf_diversed.cli.loading import read_records
    from hf_diversed.tasks import prompt_rows

    if arguments.eval_split and (arguments.data_file or arguments.eval_data_file):
        raise ValueError(
            f"--eval-split cannot be combined with --data-file or --eval-data-file, got {arguments.eval_split!r}; "
            "drop it, or the files."
        )
    n, n_eval = arguments.num_examples, arguments.num_eval_examples if held_out else 0
    split = arguments.eval_split or ("validation" if "validation" in task.splits else "train")
    files = [name and Path(name).resolve() for name in (arguments.data_file, arguments.eval_data_file)]
    shared = n_eval > 0 and files[1] in (None, files[0]) and (files[0] is not None or split == "train")
    records = read_records(task, "train", n + n_eval if shared else n, seed, arguments.data_file)
    evaluation: list[dict[str, Any]] = []
    if shared:
        random.Random(seed).shuffle(records)  # a file may be sorted
        n_eval = min(n_eval, len(records) // 2)  # a small file is halved
        records, evaluation = records[: len(records) - n_eval], records[len(records) - n_eval :]
    elif n_eval:
        evaluation = read_records(task, split, n_eval, seed, arguments.eval_data_file)

    def rows(chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return prompt_rows(task, chosen, pool=records, shots=arguments.shots, chat=arguments.chat)

    return rows(records), rows(evaluation) if n_eval else None
