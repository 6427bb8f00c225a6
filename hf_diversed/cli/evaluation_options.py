"""Options shared by commands, as parameter types. Standard library and typer only, for a fast `--help`."""

from pathlib import Path
from typing import Annotated

import typer


# The names in `hf_diversed.tasks.TASKS`, which imports the tasks.
TASK_NAMES = "gsm8k, cnndm, xsum, mbpp, mbpp_sanitized, humaneval, wmt, ifeval, scitldr, rewrite, specbench, math, "
TASK_NAMES += "summary, code"

# The names in `hf_diversed.zoo.packaged.MODELS`.
PACKAGED = "smollm2, qwen-coder-1.5b, qwen-coder-0.5b"

TaskName = Annotated[str, typer.Option("--task", help=f"One of {TASK_NAMES}.")]
Target = Annotated[
    str | None, typer.Option(help=f"Hub id, folder or one of {PACKAGED}; the embedded pair by default.")
]
Draft = Annotated[
    str | None,
    typer.Option(help="Hub id or folder of the draft model, or lookup: draft tokens are copied from the text."),
]
Head = Annotated[
    str | None,
    typer.Option(help="Hub id or folder of the head of diversed; by default the embedded head of the task."),
]
NumExamples = Annotated[int, typer.Option(min=1, help="Number of prompts.")]
SamplesPerPrompt = Annotated[int, typer.Option(min=1, help="Number of completions of each prompt.")]
Split = Annotated[str, typer.Option(help="Split of the task.")]
DataFile = Annotated[
    str | None, typer.Option(help="JSON Lines file with the task's columns, used instead of the split.")
]
Shots = Annotated[int, typer.Option(min=0, help="Solved examples before each prompt, from the training split.")]
ShotsFile = Annotated[str | None, typer.Option(help="JSON Lines file whose first records are the solved examples.")]
Chat = Annotated[bool, typer.Option("--chat", help="Apply the tokenizer's chat template, without stop strings.")]
Seed = Annotated[int, typer.Option(help="Seed of prompts, sampling and intervals.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 decodes greedily.")]
TopK = Annotated[int, typer.Option(min=0, help="Sample from this many of the likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability; 1 keeps all.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts decoded together.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens; by default the task's own.")]
Records = Annotated[bool, typer.Option(help="Also measure TV, bias and relaxed tokens (slower).")]
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps or cpu; by default the fastest available.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="Data type of the models: auto (as saved, the default), float32, bfloat16 or float16."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove the files of an earlier run from the folder.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code-execution", help="Let code tasks run completions in a sandbox.")
]
UnsafeCode = Annotated[
    bool,
    typer.Option(
        "--unsafe-code-execution", help="Let code tasks run completions without a sandbox, where none is available."
    ),
]
Gamma = Annotated[
    int | None,
    typer.Option("--num-assistant-tokens", min=1, help="Draft tokens per round; by default the head's own, or 5."),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "--verifier",
        help="target, lossless, lenience:0.3, diversed ...; by default diversed with a head, else lenience:0.3.",
    ),
]
HeadTask = Annotated[str, typer.Option("--task", help="Task whose head of the embedded pair is used.")]
HeadSource = Annotated[str | None, typer.Option("--head", help="Hub id or folder of a DiversedHead.")]
Results = Annotated[
    Path | None, typer.Option(help="JSON file for the results; a folder beside it keeps what is done, to continue.")
]
