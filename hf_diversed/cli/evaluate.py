"""`hf-diversed evaluate`."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from hf_diversed.cli import options
from hf_diversed.cli.options import console


def evaluate(
    task: Annotated[str, typer.Option(help="Name of the task: math, summary, code, gsm8k, mbpp ...")],
    methods: Annotated[
        str, typer.Option(help="Separated by commas: target, lossless, lenience:0.3, diversed@0.7 ...")
    ],
    target: options.Target = None,
    draft: options.Draft = None,
    head: Annotated[
        str | None, typer.Option(help="Hub id or folder of the head of diversed; by default the embedded pair's.")
    ] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    data_file: options.DataFile = None,
    split: options.Split = "test",
    num_examples: options.NumExamples = 500,
    samples_per_prompt: Annotated[int, typer.Option(min=1, help="Completions of each prompt.")] = 1,
    shots: options.Shots = 0,
    shots_file: options.ShotsFile = None,
    chat: options.Chat = False,
    thinking: options.Thinking = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    num_assistant_tokens: Annotated[int, typer.Option(min=1, help="Draft tokens per round.")] = 5,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: options.BatchSize = 16,
    seed: options.Seed = 0,
    allow_code_execution: options.AllowCode = False,
    allow_unsafe_code_execution: options.AllowUnsafeCode = False,
    output: options.Output = None,
    plot: Annotated[
        Path | None, typer.Option(help="PNG, SVG or PDF file for a plot of quality against acceptance.")
    ] = None,
    plot_time: Annotated[
        bool, typer.Option("--plot-time", help="With --plot, plot quality against seconds per answer instead.")
    ] = False,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Measure quality, acceptance and speed of methods on a task.

    All methods answer the same prompts under the same seeds.
    """
    from hf_diversed.cli.loading import load_task, quiet_transformers, read_records, read_shots
    from hf_diversed.evaluation import EvaluationSettings
    from hf_diversed.evaluation import evaluate as run
    from hf_diversed.evaluation.decoder import build_methods
    from hf_diversed.evaluation.table import results_table, setting
    from hf_diversed.tasks import PromptedTask
    from hf_diversed.zoo import embedded_head, load_pair

    quiet_transformers()
    if plot is not None:
        if plot.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"--plot must end in .png, .svg or .pdf, got {plot}.")
        try:
            from hf_diversed.evaluation.plot import save_plot
        except ImportError as error:
            raise ImportError('--plot needs matplotlib: pip install "hf-diversed[plot]"') from error
    settings = EvaluationSettings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_assistant_tokens=num_assistant_tokens,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        samples_per_prompt=samples_per_prompt,
        seed=seed,
        split=split if data_file is None else Path(data_file).name,
    )
    scored = load_task(task, allow_code_execution, allow_unsafe_code_execution)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    own_head = head if head is not None or target is not None else embedded_head(task)
    build_methods(names, own_head)  # reports wrong names before models are loaded
    examples = read_records(scored, split, num_examples, seed, data_file)
    pool = read_shots(scored, shots, shots_file, seed)
    pair = load_pair(target, draft, device, dtype)
    prompted = PromptedTask(scored, pair.tokenizer, pool=pool, shots=shots, chat=chat, thinking=thinking)
    rows = run(pair, prompted, examples, names, settings, head=own_head, output=output)
    if json:
        print(json_format.dumps({"records": rows}, indent=1))
    else:
        console.print(setting(rows[0]).capitalize(), highlight=False)
        console.print(results_table(rows))
    if plot is not None:
        save_plot(rows, plot, time=plot_time)
