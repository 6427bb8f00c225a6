"""Options that several commands share, and what they print with."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console


console = Console()  # results, which may be redirected; all other messages go to `notes`
notes = Console(stderr=True)

DEBUG = "hf_diversed.debug"  # key in the context's `meta`


def _store_debug(context: typer.Context, shown: bool) -> bool:
    context.meta[DEBUG] = shown
    return shown


Debug = Annotated[
    bool, typer.Option("--debug", callback=_store_debug, is_eager=True, help="Show the traceback of an error.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps or cpu; by default the fastest available.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Data type of the models; by default that of the saved weights."),
]
Target = Annotated[
    str | None, typer.Option(help="Hub id or folder of the target model; by default the embedded pair.")
]
Draft = Annotated[
    str | None,
    typer.Option(help="Hub id or folder of the draft model, or lookup to copy draft tokens from the text."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of prompts, sampling and intervals.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 decodes greedily.")]
TopK = Annotated[int, typer.Option(min=0, help="Sample from this many of the likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability; 1 keeps all.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts decoded together.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="Longest answer, in tokens; by default the task's own limit.")
]

# The prompts of a task
DataFile = Annotated[
    str | None, typer.Option(help="JSON Lines file with the task's columns, used instead of the split.")
]
Split = Annotated[str, typer.Option(help="Split of the task.")]
NumExamples = Annotated[int, typer.Option(min=1, help="Number of prompts; a smaller data file is used whole.")]
Shots = Annotated[int, typer.Option(min=0, help="Solved examples before each prompt, from the training split.")]
ShotsFile = Annotated[
    str | None, typer.Option(help="JSON Lines file whose first records are the solved examples of --shots.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Apply the tokenizer's chat template, without stop strings.")]
Thinking = Annotated[
    bool, typer.Option("--thinking", help="With --chat, let the model think, where its template has enable_thinking.")
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code-execution", help="Let code tasks run completions, isolated by bubblewrap.")
]
AllowUnsafeCode = Annotated[
    bool,
    typer.Option(
        "--allow-unsafe-code-execution", help="Let code tasks run completions without isolation, in a container."
    ),
]
Output = Annotated[Path | None, typer.Option(help="Folder of finished calls; an interrupted run continues from it.")]
