"""`hf-diversed evaluate`: quality, acceptance and cost of several methods on one task."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, errors_in_words
from hf_diversed.evaluation import EvaluationSettings
from hf_diversed.evaluation import evaluate as run
from hf_diversed.evaluation.evaluate import REPORT
from hf_diversed.evaluation.formatting import number, percent, with_bounds
from hf_diversed.tasks import load_records


def evaluate(
    task: options.TaskName,
    methods: Annotated[str, typer.Option(help="Separated by commas: ar, sd, static:0.5, diversed, diversed@0.7 ...")],
    target: options.Target = None,
    draft: options.Draft = None,
    head: options.Head = None,
    num_examples: options.NumExamples = 500,
    samples_per_prompt: options.SamplesPerPrompt = 1,
    split: options.Split = "test",
    data_file: options.DataFile = None,
    seed: options.Seed = 0,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Drafts per round.")] = 5,
    batch_size: options.BatchSize = 16,
    max_new_tokens: options.MaxNewTokens = None,
    records: options.Records = False,
    device: options.Device = None,
    output: Annotated[Path | None, typer.Option(help="JSON file; what is done is kept in a folder beside it.")] = None,
    allow_code_execution: options.AllowCode = False,
    unsafe_code_execution: options.UnsafeCode = False,
) -> None:
    """Measure methods on the same prompts under the same seeds; an interrupted run goes on where it stopped."""
    with errors_in_words():
        judge = options.load_task(task, allow_code_execution, unsafe_code_execution)
        pair, chosen = options.load_models(target, draft, head, device, task)
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
        )
        examples = load_records(judge, split, num_examples, seed, data_file)
        share = options.process_share(settings)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) if output is None else output.with_suffix(".parts")
            rows = run(pair, judge, examples, methods.split(","), share, head=chosen, output=folder)
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
