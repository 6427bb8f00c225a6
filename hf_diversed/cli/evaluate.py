"""`hf-diversed evaluate`: quality, acceptance and cost of several methods on one task."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from hf_diversed.cli.models import load_pair
from hf_diversed.cli.terminal import console, errors_in_words
from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.evaluation import evaluate as run
from hf_diversed.evaluation.evaluate import REPORT
from hf_diversed.evaluation.formatting import number, percent, with_bounds
from hf_diversed.generation.hook import install_hook
from hf_diversed.tasks import TASKS, get_task, load_records
from hf_diversed.zoo import load_demo_pair


def evaluate(
    task: Annotated[str, typer.Option(help=f"One of {', '.join(TASKS)}.")],
    methods: Annotated[str, typer.Option(help="Separated by commas: ar, sd, static:0.5, diversed, diversed@0.7 ...")],
    target: Annotated[str | None, typer.Option(help="Hub id or folder; the embedded pair if left out.")] = None,
    draft: Annotated[str | None, typer.Option(help="Hub id or folder of the draft.")] = None,
    head: Annotated[str | None, typer.Option(help='What "diversed" means; the embedded head of the task.')] = None,
    num_examples: Annotated[int, typer.Option(min=1, help="Prompts.")] = 500,
    samples_per_prompt: Annotated[int, typer.Option(min=1, help="Completions of each prompt.")] = 1,
    split: Annotated[str, typer.Option(help="Split of the task.")] = "test",
    data_file: Annotated[str | None, typer.Option(help="JSON Lines in the task's columns, instead.")] = None,
    seed: Annotated[int, typer.Option(help="Of prompts, sampling and intervals.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 decodes greedily.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps the whole vocabulary.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps the whole vocabulary.")] = 1.0,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Drafts per round.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 16,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer; the task's own.")] = None,
    records: Annotated[bool, typer.Option(help="Also measure TV, bias and relaxed tokens (slower).")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; the best one by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="JSON file; what is done is kept in a folder beside it.")] = None,
    allow_code_execution: Annotated[bool, typer.Option(help="Let code tasks run completions, isolated.")] = False,
    unsafe_code_execution: Annotated[bool, typer.Option(help="Also where nothing isolates them.")] = False,
) -> None:
    """Measure methods on the same prompts under the same seeds; an interrupted run goes on where it stopped."""
    with errors_in_words():
        install_hook()
        judge = get_task(task, allow_code_execution=allow_code_execution, unsafe_code_execution=unsafe_code_execution)
        judge.check_scoring()
        pair = load_demo_pair() if target is None and draft is None else load_pair(target, draft, device)
        chosen = head if head is not None else getattr(pair, "heads", {}).get(task)
        settings = EvaluationSettings(
            num_examples=num_examples,
            samples_per_prompt=samples_per_prompt,
            seed=seed,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            num_assistant_tokens=num_assistant_tokens,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            records=records,
            rank=int(os.environ.get("RANK", 0)),
            world_size=int(os.environ.get("WORLD_SIZE", 1)),
        )
        examples = load_records(judge, split, num_examples, seed, data_file)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) if output is None else output.with_suffix(".parts")
            rows = run(pair, judge, examples, methods.split(","), settings, head=chosen, output=folder)
            if not rows:
                return  # other processes are still at work; the last one reports
            if output is not None:
                shutil.copyfile(folder / REPORT, output)
        console.print(results_table(rows))


def results_table(rows: list[dict]) -> Table:
    """One line per method: acceptance and quality with their 95% bounds."""
    table = Table(header_style="bold", box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    for header in ("accepted", "accepted,\nverified", "tokens per\nround", rows[0]["metric"], "below\nreference"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            with_bounds(row, "acceptance_rate"),
            percent(row["verified_acceptance_rate"]),
            number(row["block_efficiency"]),
            with_bounds(row, "quality"),
            with_bounds(row, "quality_drop"),
        )
    return table
