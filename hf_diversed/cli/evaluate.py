"""`hf-diversed evaluate`: quality, acceptance and cost of several methods on one task."""

import itertools
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, errors_in_words
from hf_diversed.evaluation import EvaluationSettings, markdown_table, sweep
from hf_diversed.evaluation.formatting import number, percent, with_bounds
from hf_diversed.evaluation.markdown import setting
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
    shots: options.Shots = 0,
    shots_file: options.ShotsFile = None,
    chat: options.Chat = False,
    seed: options.Seed = 0,
    temperature: Annotated[str, typer.Option(help="0 decodes greedily; several as in 0,0.1,1.")] = "1.0",
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    num_assistant_tokens: Annotated[str, typer.Option(help="Drafts per round; several as in 3,5,7.")] = "5",
    batch_size: options.BatchSize = 16,
    max_new_tokens: options.MaxNewTokens = None,
    records: options.Records = False,
    device: options.Device = None,
    output: Annotated[Path | None, typer.Option(help="JSON file; what is done is kept in a folder beside it.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for a table of acceptance and quality.")] = None,
    allow_code_execution: options.AllowCode = False,
    unsafe_code_execution: options.UnsafeCode = False,
) -> None:
    """Measure methods on the same prompts under the same seeds; an interrupted run goes on where it stopped."""
    with errors_in_words():
        judge = options.load_task(task, allow_code_execution, unsafe_code_execution)
        settings = EvaluationSettings(
            num_examples=num_examples,
            samples_per_prompt=samples_per_prompt,
            seed=seed,
            top_k=top_k,
            top_p=top_p,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            add_special_tokens=not chat,
            records=records,
            split=split if data_file is None else Path(data_file).name,
        )
        temperatures = options.numbers("--temperature", temperature, float)
        gammas = options.numbers("--num-assistant-tokens", num_assistant_tokens, int)
        variants = [
            replace(options.process_share(settings, output), temperature=t, num_assistant_tokens=gamma)
            for t, gamma in itertools.product(temperatures, gammas)
        ]
        pair, chosen = options.load_models(target, draft, head, device, task, chat)
        examples = load_records(judge, split, num_examples, seed, data_file)
        asked = options.prompted(judge, pair, shots, shots_file, chat, seed)
        with tempfile.TemporaryDirectory() as scratch:
            parts = _folders(Path(scratch) if output is None else output.with_suffix(".parts"), variants)
            rows = sweep(pair, asked, examples, methods.split(","), parts, head=chosen, output=output)
        if not rows:
            return  # other processes are still at work; the last one reports
        if markdown is not None:
            markdown.write_text(markdown_table(rows), encoding="utf-8")
        _show(rows)


def _folders(root: Path, variants: list[EvaluationSettings]) -> dict[Path, EvaluationSettings]:
    """Where each variant's calls are kept: in the folder itself, or in one below it for each of several."""
    if len(variants) == 1:
        return {root: variants[0]}
    return {root / f"temperature-{item.temperature:g}_gamma-{item.num_assistant_tokens}": item for item in variants}


def _show(rows: list[dict]) -> None:
    """Two tables for every temperature and draft length."""
    for words, chosen in itertools.groupby(rows, key=setting):
        group = list(chosen)
        console.print(f"[bold]{words[0].upper()}{words[1:]}[/]")
        console.print(results_table(group))
        if any(row["acceptance_rate"] is not None for row in group):
            console.print(accepted_length_table(group))


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


def accepted_length_table(rows: Iterable[dict]) -> Table:
    """One line per drafted method: accepted drafts per round, and what theory says of them."""
    table = Table(header_style="bold", box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    headers = ("accepted\nper round", "predicted,\nexact", "predicted,\ni.i.d.", "standard errors\nfrom exact")
    for header in headers:
        table.add_column(header, justify="right")
    names = ("accepted_length", "accepted_length_exact", "accepted_length_iid", "accepted_length_z")
    for row in rows:
        if row["acceptance_rate"] is not None:
            table.add_row(row["method"], *(number(row[name]) for name in names))
    return table
