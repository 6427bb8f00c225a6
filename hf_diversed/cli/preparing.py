"""Preparation of measuring commands: pair, head, methods, prompts and output folder. Arguments that can be checked
without the models are checked before the models are loaded."""

import fnmatch
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from hf_diversed.cli import terminal
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import MeasuringOptions
from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.harness.methods import HeadLike, build_methods
from hf_diversed.harness.pair import Pair
from hf_diversed.head import DiversedHeadConfig
from hf_diversed.head.pulling import CONFIG
from hf_diversed.method_names import DIVERSED, MethodName
from hf_diversed.tasks import PromptedTask, Task, get_task, load_records
from hf_diversed.tasks.loading import choose, parse_lines
from hf_diversed.zoo.loader import WEIGHTS


Value = TypeVar("Value", int, float)


def load_task(options: MeasuringOptions) -> Task:
    """Return a task after checking the split, and that the task can score completions."""
    if options.data_file is not None and options.split != type(options).split:
        raise ValueError(f"--split {options.split} has no effect with --data-file; leave it out.")
    task = get_task(
        options.task,
        allow_code_execution=options.allow_code_execution,
        allow_unsafe_code_execution=options.allow_unsafe_code_execution,
    )
    task.check_scoring()
    return task


def settings_of(options: MeasuringOptions, **changes: Any) -> EvaluationSettings:
    """Return evaluation settings from the options of the same names; `changes` take precedence."""
    values = {
        item.name: getattr(options, item.name) for item in fields(EvaluationSettings) if hasattr(options, item.name)
    }
    values["add_special_tokens"] = not options.chat
    values["split"] = options.split if options.data_file is None else Path(options.data_file).name
    return EvaluationSettings(**values | changes)


def load_prompts(
    options: MeasuringOptions, task: Task, head: str | None
) -> tuple[Pair, PromptedTask, list[dict[str, Any]], HeadLike | None]:
    """Load the records and the pair; return the pair, the task with its prompts, the records, and the head of
    "diversed": the named one, or the embedded pair's head for the task.

    Raises:
        ValueError: if there are too few solved examples or `shots_file` is set without `shots`, and as in `load_pair`.
    """
    if options.shots_file is not None and not options.shots:
        raise ValueError("--shots-file requires --shots, the number of solved examples per prompt.")
    if options.shots and options.shots_file is None and "train" not in task.splits:
        raise ValueError(f"--shots needs --shots-file: task {task.name!r} has no training split.")
    examples = read_records(task, options.split, options.num_examples, options.seed, options.data_file)
    pool: list[dict[str, Any]] = []
    if options.shots_file is not None:
        pool = parse_lines(Path(options.shots_file), task, "shots_file")
    elif options.shots:
        # One more than `shots`, because a record is never its own example.
        with naming_records("`shots` + 1"):
            pool = load_records(task, "train", options.shots + 1, options.seed)
    pair = load_pair(options.target, options.draft, options.device, options.chat, options.dtype)
    prompted = PromptedTask(
        task, pair.tokenizer, pool=pool, shots=options.shots, chat=options.chat, thinking=options.thinking
    )
    return pair, prompted, examples, head if head is not None else pair.heads.get(options.task)


@contextmanager
def naming_records(number: str, split: str = "split") -> Iterator[None]:
    """Name these options in errors about the number of records and about the split."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("`n`", number).replace("`split`", f"`{split}`")) from error


def read_records(task: Task, split: str, n: int, seed: int, data_file: str | None) -> list[dict[str, Any]]:
    """Return `n` records of a split or a file; all records of a smaller file."""
    if data_file is None:
        return load_records(task, split, n, seed)
    records = load_records(task, split, data_file=data_file)
    return choose(records, min(n, len(records)), seed, data_file)


def check_methods(
    option: str, specs: Sequence[str], target: str | None, head: str | None, task: str, temperatures: Sequence[float]
) -> None:
    """Raise ValueError if a method cannot be built or run at one of the temperatures, also if its head cannot be
    loaded, or if no method uses `head`."""
    uses_head = [spec for spec in specs if replace(MethodName.parse(spec), strictness=None) == MethodName(DIVERSED)]
    if head is not None and not uses_head:
        raise ValueError(f"--head {head} is not used by {option} {','.join(specs)}; add diversed, or leave it out.")
    embedded = WEIGHTS / "heads" / task
    default_head: HeadLike | None = embedded if head is None and target is None and embedded.is_dir() else head
    for spec in specs:
        if default_head is None and spec in uses_head:
            raise ValueError(
                f"{option} {spec} needs a head: pass --head FOLDER_OR_HUB_ID, or name it as in diversed:org/head@0.5."
            )
        with naming(option, spec):
            (method,) = build_methods([spec], default_head)
            if method.truncation and 0.0 in temperatures:
                raise ValueError("greedy decoding has no truncation; evaluate temperature 0 in another command.")
            if method.verifier is not None and method.verifier.greedy_only and any(temperatures):
                raise ValueError("this verifier is defined for greedy decoding only; pass --temperature 0.")
    if specs:
        build_methods(specs, default_head)


@contextmanager
def naming(option: str, spec: str) -> Iterator[None]:
    """Prefix a ValueError with the option and its value."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{option} {spec}: {error}") from error


def check_folder(argument: str, path: Path) -> None:
    """Raise ValueError if a folder does not exist."""
    if not path.is_dir():
        raise ValueError(f"{argument}: the folder {path} does not exist.")


def check_output(option: str, path: Path | None, folder: bool = False) -> None:
    """Raise ValueError if a path cannot be written; creates nothing."""
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        raise ValueError(
            f"{option} must be a {'folder' if folder else 'file'}, got {path}, a {'file' if folder else 'folder'}."
        )
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    try:
        if existing.is_dir():
            tempfile.TemporaryFile(dir=existing).close()
        else:  # a file, or a path below a file
            (path if path.exists() else existing / path.name).open("ab").close()
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be written: {error}.") from error


# Files written by training. Caches are compared with the settings of a run before they are used.
_CACHES = ("reference_rewards.json",)
_WRITTEN = (
    *_CACHES,
    *("checkpoint-*", ".saving", "calibration", "runs", "custom_generate", ".eval_results"),
    *("model.safetensors", "config.json", "trainer_state.json", "training_args.bin"),
    *("README.md", "provenance.json", "evaluation.json", "evaluation.parts", "*_results.json"),
)


def check_new_folder(
    folder: Path, overwrite: bool, inputs: Sequence[str | None] = (), resume: bool | None = None
) -> None:
    """Raise ValueError if --output-dir contains files, unless `overwrite` or `resume` is set.

    Hidden files, and caches of a run that has saved nothing else, are allowed.

    Args:
        inputs: models and heads that the run reads; `overwrite` must not remove them.
        resume: whether the run continues an earlier one; None for commands that cannot.
    """
    check_output("--output-dir", folder, folder=True)
    if overwrite and resume:
        raise ValueError("--overwrite starts a new run and --resume continues one; pass only one of them.")
    files = [path.name for path in sorted(folder.glob("[!.]*")) if not _matches(path.name, _CACHES)]
    if not files or resume:
        return
    if not overwrite:
        continued = "" if resume is None else ", --resume to continue it"
        raise ValueError(
            f"--output-dir {folder} is not empty: it holds {', '.join(files[:3])}{' ...' if len(files) > 3 else ''}. "
            f"Pass --overwrite to remove what an earlier run wrote{continued}, or choose another folder."
        )
    config = folder / CONFIG
    if config.is_file() and f'"{DiversedHeadConfig.model_type}"' not in config.read_text("utf-8", "replace"):
        raise ValueError(
            f"--overwrite would remove {config}, which is not the configuration of a head; choose another folder."
        )
    inside = [name for name in inputs if name and Path(name).resolve().is_relative_to(folder.resolve())]
    if inside:
        raise ValueError(
            f"--overwrite is not possible: --output-dir {folder} holds {inside[0]}, which this run reads. Choose "
            "another folder."
        )


def remove_earlier_run(folder: Path) -> None:
    """Remove files that training wrote to a folder; other files are kept."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if not _matches(path.name, _WRITTEN):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def check_one_process(command: str) -> None:
    """Raise ValueError if a launcher started several processes."""
    if (world_size := int(os.environ.get("WORLD_SIZE", 1))) > 1:
        raise ValueError(
            f"{command} runs in a single process, got {world_size} (WORLD_SIZE); start it without a launcher."
        )


def process_share(options: MeasuringOptions, **changes: Any) -> EvaluationSettings:
    """Return the settings with the rank of this process, as set by `accelerate launch` or torchrun.

    Raises:
        ValueError: if there are several processes and `output` is not set, or `overwrite` is set.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1 and options.output is None:
        raise ValueError(
            f"--output is required with several processes, which share this file; got {world_size} (WORLD_SIZE)."
        )
    if world_size > 1 and options.overwrite:
        raise ValueError(
            f"--overwrite needs a single process, got {world_size} (WORLD_SIZE); delete the results before the run."
        )
    return settings_of(options, rank=int(os.environ.get("RANK", 0)), world_size=world_size, **changes)


def resumable(kept: Path | None, overwrite: bool) -> AbstractContextManager[None]:
    """On Ctrl-C print how the measurement can continue: from the finished calls in `kept`, if they are kept."""
    if kept is None:
        return terminal.interruptible("Nothing was kept; pass --output to keep finished calls.")
    how = (
        "without --overwrite to continue, or with it if this run has finished no call"
        if overwrite
        else "again to continue"
    )
    return terminal.interruptible(f"Finished calls are kept in {kept}: run the same command {how}.")


def numbers(option: str, text: str, kind: Callable[[str], Value]) -> list[Value]:
    """Return the comma-separated values of an option, which must differ."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        number = "an integer" if kind is int else "a number"
        raise ValueError(f"{option} must be {number}, or several separated by commas, got {text!r}.") from error
    if len(set(values)) < len(values):
        raise ValueError(f"{option} must not contain a value twice, got {text!r}.")
    return values
