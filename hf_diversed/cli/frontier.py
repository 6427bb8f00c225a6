"""`hf-diversed frontier`: sweep the parameter of verifier families on one task."""

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console


def frontier(
    task: options.TaskName,
    rules: Annotated[
        str,
        typer.Option(help="Families of verifiers, separated by commas, with values to sweep as in static:0.3:0.7."),
    ] = "static,lenience,spec_cascade,diversed",
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
    temperature: options.Temperature = 1.0,
    num_assistant_tokens: Annotated[
        str, typer.Option(help="Draft tokens per round; of several (3,5,7), all but 5 apply to static weights only.")
    ] = "5",
    batch_size: options.BatchSize = 16,
    max_new_tokens: options.MaxNewTokens = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    output: options.Results = None,
    overwrite: options.Overwrite = False,
    allow_code_execution: options.AllowCode = False,
    unsafe_code_execution: options.UnsafeCode = False,
) -> None:
    """Sweep static weights, lenience, SpecCascade's alpha and the dial of a head; `hf-diversed plot` draws them."""
    from hf_diversed.cli import preparing
    from hf_diversed.cli.tables import results_table
    from hf_diversed.evaluation import EvaluationSettings
    from hf_diversed.evaluation.frontier import FRONTIER, expand
    from hf_diversed.evaluation.frontier import frontier as run
    from hf_diversed.evaluation.results import remove_results
    from hf_diversed.tasks import load_records

    judge = preparing.load_task(task, allow_code_execution, unsafe_code_execution)
    lengths = preparing.numbers("--num-assistant-tokens", num_assistant_tokens, int)
    settings = EvaluationSettings(
        num_examples=num_examples,
        samples_per_prompt=samples_per_prompt,
        seed=seed,
        temperature=temperature,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        add_special_tokens=not chat,
        split=split if data_file is None else Path(data_file).name,
    )
    share = preparing.process_share(settings, output, overwrite)
    families = rules.split(",")
    preparing.check_methods("--rules", expand(families), target, head, task)
    preparing.check_output("--output", output)
    examples = load_records(judge, split, num_examples, seed, data_file)
    judge.check_scoring(examples)
    pool = preparing.load_shots(judge, shots, shots_file, seed)
    pair, chosen = preparing.load_models(target, draft, head, device, task, chat, dtype)
    asked = preparing.prompted(judge, pair, pool, shots, chat)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if output is None else output.with_suffix(".parts")
        if overwrite:
            remove_results(folder)
        with preparing.interruptible(output, folder):
            rows = run(
                pair, asked, examples, families, share, num_assistant_tokens=lengths, head=chosen, output=folder
            )
        if not rows:
            return  # other processes are unfinished; the last one reports
        if output is not None:
            shutil.copyfile(folder / FRONTIER, output)
    for length in dict.fromkeys(row["num_assistant_tokens"] for row in rows):
        console.print(f"{length} drafts per round")
        console.print(results_table([row for row in rows if row["num_assistant_tokens"] == length]))
