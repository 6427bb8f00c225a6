"""`hf-diversed evaluate`: quality, acceptance and cost of several methods on one task."""

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console


if TYPE_CHECKING:
    from hf_diversed.evaluation import EvaluationSettings


def evaluate(
    task: options.TaskName,
    methods: Annotated[
        str,
        typer.Option(help="Methods, separated by commas: target, lossless, lenience:0.3, diversed, diversed@0.7 ..."),
    ],
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
    temperature: Annotated[
        str, typer.Option(help="Sampling temperature, 0 for greedy decoding; several as in 0,0.1,1.")
    ] = "1.0",
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    num_assistant_tokens: Annotated[str, typer.Option(help="Draft tokens per round; several as in 3,5,7.")] = "5",
    batch_size: options.BatchSize = 16,
    max_new_tokens: options.MaxNewTokens = None,
    records: options.Records = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    output: options.Results = None,
    markdown: Annotated[Path | None, typer.Option(help="Markdown file for a table of acceptance and quality.")] = None,
    overwrite: options.Overwrite = False,
    allow_code_execution: options.AllowCode = False,
    unsafe_code_execution: options.UnsafeCode = False,
) -> None:
    """Measure methods on the same prompts under the same seeds; an interrupted run goes on where it stopped."""
    from hf_diversed.cli import preparing
    from hf_diversed.evaluation import EvaluationSettings, markdown_table, sweep
    from hf_diversed.evaluation.results import remove_results
    from hf_diversed.tasks import load_records

    judge = preparing.load_task(task, allow_code_execution, unsafe_code_execution)
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
    temperatures = preparing.numbers("--temperature", temperature, float)
    gammas = preparing.numbers("--num-assistant-tokens", num_assistant_tokens, int)
    variants = [
        replace(preparing.process_share(settings, output, overwrite), temperature=t, num_assistant_tokens=gamma)
        for t, gamma in itertools.product(temperatures, gammas)
    ]
    names = methods.split(",")
    preparing.check_methods("--methods", names, target, head, task)
    preparing.check_output("--output", output)
    preparing.check_output("--markdown", markdown)
    examples = load_records(judge, split, num_examples, seed, data_file)
    judge.check_scoring(examples)
    pool = preparing.load_shots(judge, shots, shots_file, seed)
    pair, chosen = preparing.load_models(target, draft, head, device, task, chat, dtype)
    asked = preparing.prompted(judge, pair, pool, shots, chat)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if output is None else output.with_suffix(".parts")
        if overwrite:
            remove_results(folder)
        parts = [(names, variant, part) for part, variant in _folders(folder, variants).items()]
        with preparing.interruptible(output, folder):
            rows = sweep(pair, asked, examples, parts, head=chosen, output=output)
    if not rows:
        return  # other processes are unfinished; the last one reports
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(markdown_table(rows), encoding="utf-8")
    _show(rows)


def _folders(root: Path, variants: "list[EvaluationSettings]") -> "dict[Path, EvaluationSettings]":
    """Return the folder of each variant's calls: `output` itself, or a subfolder for each of several."""
    if len(variants) == 1:
        return {root: variants[0]}
    return {root / f"temperature-{item.temperature:g}_gamma-{item.num_assistant_tokens}": item for item in variants}


def _show(rows: list[dict]) -> None:
    """Print two tables for each temperature and draft length."""
    from hf_diversed.cli.tables import accepted_length_table, results_table
    from hf_diversed.evaluation.markdown import setting

    for words, chosen in itertools.groupby(rows, key=setting):
        group = list(chosen)
        console.print(f"[bold]{words[0].upper()}{words[1:]}[/]")
        console.print(results_table(group))
        if any(row["acceptance_rate"] is not None for row in group):
            console.print(accepted_length_table(group))
