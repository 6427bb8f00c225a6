"""Options that commands share, as types of their parameters. Nothing here waits for torch or transformers."""

from typing import Annotated

import typer


# The names in `hf_diversed.tasks.TASKS`, which imports the tasks.
TASK_NAMES = "gsm8k, cnndm, xsum, mbpp, mbpp_sanitized, humaneval, wmt, ifeval, scitldr, rewrite, specbench, math, "
TASK_NAMES += "summary, code"

# The names in `hf_diversed.zoo.packaged.MODELS`.
PACKAGED = "smollm2, qwen-coder-1.5b, qwen-coder-0.5b"

TaskName = Annotated[str, typer.Option("--task", help=f"One of {TASK_NAMES}.")]
Target = Annotated[
    str | None, typer.Option(help=f"Hub id, folder or one of {PACKAGED}; the embedded pair if left out.")
]
Draft = Annotated[str | None, typer.Option(help="Hub id or folder of the draft, or lookup: from the text itself.")]
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
Device = Annotated[str | None, typer.Option(help="cuda, cuda:1, mps or cpu; the best one by default.")]
Dtype = Annotated[
    str | None, typer.Option(help="Of the pair: auto (as saved), float32, bfloat16 or float16; auto by default.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove what an earlier run wrote to the folder.")]
AllowCode = Annotated[bool, typer.Option("--allow-code-execution", help="Let code tasks run completions, isolated.")]
UnsafeCode = Annotated[bool, typer.Option("--unsafe-code-execution", help="Also where nothing isolates them.")]
