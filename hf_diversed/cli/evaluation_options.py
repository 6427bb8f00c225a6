"""Options and set-up that the measuring commands share: which pair, head and prompts, and how they are decoded."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from hf_diversed.cli.models import load_pair
from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.evaluation.decoding import Pair
from hf_diversed.evaluation.methods import HeadLike
from hf_diversed.generation.hook import install_hook
from hf_diversed.tasks import TASKS, PromptedTask, Task, get_task, load_records


Value = TypeVar("Value", int, float)
TaskName = Annotated[str, typer.Option("--task", help=f"One of {', '.join(TASKS)}.")]
Target = Annotated[str | None, typer.Option(help="Hub id or folder; the embedded pair if left out.")]
Draft = Annotated[str | None, typer.Option(help="Hub id or folder of the draft.")]
Head = Annotated[str | None, typer.Option(help='What "diversed" means; the embedded head of the task.')]
NumExamples = Annotated[int, typer.Option(min=1, help="Prompts.")]
SamplesPerPrompt = Annotated[int, typer.Option(min=1, help="Completions of each prompt.")]
Split = Annotated[str, typer.Option(help="Split of the task.")]
DataFile = Annotated[str | None, typer.Option(help="JSON Lines in the task's columns, instead.")]
Shots = Annotated[int, typer.Option(min=0, help="Solved examples before every prompt, of the training split.")]
ShotsFile = Annotated[str | None, typer.Option(help="JSON Lines whose first records they are, instead.")]
Chat = Annotated[bool, typer.Option("--chat", help="Prompts in the tokenizer's chat template, without stop strings.")]
Seed = Annotated[int, typer.Option(help="Of prompts, sampling and intervals.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")]
TopK = Annotated[int, typer.Option(min=0, help="0 keeps the whole vocabulary.")]
TopP = Annotated[float, typer.Option(help="1 keeps the whole vocabulary.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts decoded together.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer; the task's own.")]
Records = Annotated[bool, typer.Option(help="Also measure TV, bias and relaxed tokens (slower).")]
Device = Annotated[str | None, typer.Option(help="cuda, mps or cpu; the best one by default.")]
AllowCode = Annotated[bool, typer.Option("--allow-code-execution", help="Let code tasks run completions, isolated.")]
UnsafeCode = Annotated[bool, typer.Option("--unsafe-code-execution", help="Also where nothing isolates them.")]


def load_task(name: str, allow_code_execution: bool, unsafe_code_execution: bool) -> Task:
    """A task that can score what models write; refused here, before anything is decoded."""
    task = get_task(name, allow_code_execution=allow_code_execution, unsafe_code_execution=unsafe_code_execution)
    task.check_scoring()
    return task


def load_models(
    target: str | None, draft: str | None, head: str | None, device: str | None, task: str, chat: bool = False
) -> tuple[Pair, HeadLike | None]:
    """The pair, and what "diversed" means: the head that was named, or the embedded pair's own for the task.

    Raises:
        ValueError: as `load_pair` does.
    """
    install_hook()
    pair = load_pair(target, draft, device, chat)
    return pair, head if head is not None else pair.heads.get(task)


def prompted(task: Task, pair: Pair, shots: int, shots_file: str | None, chat: bool, seed: int) -> PromptedTask:
    """The task under the prompts of `hf-diversed train` with the same options. Its shots are those of training if the
    seed is the same, or the file and all of it was trained on.

    Raises:
        ValueError: if there are too few records to take the shots from, or for a file without shots.
    """
    if shots_file is not None and not shots:
        raise ValueError("--shots-file says where solved examples come from; pass --shots as well.")
    # Of a split, one more than shots: a record never is its own example.
    pool = load_records(task, "train", shots + 1 if shots_file is None else None, seed, shots_file) if shots else []
    return PromptedTask(task, pair.tokenizer, pool=pool, shots=shots, chat=chat)


def process_share(settings: EvaluationSettings, output: Path | None) -> EvaluationSettings:
    """The settings for this process of those that `accelerate launch` or torchrun started.

    Raises:
        ValueError: if there are several, and no `output` for them to meet at.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1 and output is None:
        raise ValueError(f"--output must name a file for {world_size} processes (WORLD_SIZE): they meet beside it.")
    return replace(settings, rank=int(os.environ.get("RANK", 0)), world_size=world_size)


def numbers(option: str, text: str, kind: Callable[[str], Value], distinct: bool = True) -> list[Value]:
    """The values of an option that takes several, separated by commas; each once if `distinct`."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option} must be a number, or several separated by commas, got {text!r}.") from error
    if distinct and len(set(values)) < len(values):
        raise ValueError(f"{option} must not name a value twice, got {text!r}.")
    return values
