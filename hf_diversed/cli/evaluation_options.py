"""Options and set-up that the measuring commands share: which pair, head and prompts, and how they are decoded."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, TypeVar

import typer

from hf_diversed.cli.models import load_pair
from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.evaluation.decoding import Pair
from hf_diversed.evaluation.methods import HeadLike
from hf_diversed.generation.hook import install_hook
from hf_diversed.tasks import TASKS, Task, get_task
from hf_diversed.zoo import load_demo_pair


Value = TypeVar("Value", int, float)
TaskName = Annotated[str, typer.Option("--task", help=f"One of {', '.join(TASKS)}.")]
Target = Annotated[str | None, typer.Option(help="Hub id or folder; the embedded pair if left out.")]
Draft = Annotated[str | None, typer.Option(help="Hub id or folder of the draft.")]
Head = Annotated[str | None, typer.Option(help='What "diversed" means; the embedded head of the task.')]
NumExamples = Annotated[int, typer.Option(min=1, help="Prompts.")]
SamplesPerPrompt = Annotated[int, typer.Option(min=1, help="Completions of each prompt.")]
Split = Annotated[str, typer.Option(help="Split of the task.")]
DataFile = Annotated[str | None, typer.Option(help="JSON Lines in the task's columns, instead.")]
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
    target: str | None, draft: str | None, head: str | None, device: str | None, task: str
) -> tuple[Pair, HeadLike | None]:
    """The pair, and what "diversed" means: the head that was named, or the embedded pair's own for the task."""
    install_hook()
    if target is None and draft is None:
        embedded = load_demo_pair()
        return embedded, head if head is not None else embedded.heads.get(task)
    return load_pair(target, draft, device), head


def process_share(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings for this process of those that `accelerate launch` or torchrun started."""
    return replace(settings, rank=int(os.environ.get("RANK", 0)), world_size=int(os.environ.get("WORLD_SIZE", 1)))


def numbers(option: str, text: str, kind: Callable[[str], Value]) -> list[Value]:
    """The distinct values of an option that takes several, separated by commas."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option} must be a number, or several separated by commas, got {text!r}.") from error
    if len(set(values)) < len(values):
        raise ValueError(f"{option} must not name a value twice, got {text!r}.")
    return values
