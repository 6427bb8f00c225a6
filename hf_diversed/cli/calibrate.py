"""`hf-diversed calibrate`."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from hf_diversed.cli import options
from hf_diversed.cli.options import console, notes


if TYPE_CHECKING:
    from hf_diversed.evaluation.calibrate import Tested


def calibrate(
    head: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Folder of the head, whose configuration is changed.")
    ],
    max_quality_drop: Annotated[
        float, typer.Option(help="Tolerated drop below the target alone, in units of the metric.")
    ] = 0.01,
    confidence: Annotated[float, typer.Option(help="Confidence that the drop is at most --max-quality-drop.")] = 0.95,
    task: Annotated[str | None, typer.Option(help="Name of the task; by default the head's.")] = None,
    target: options.Target = None,
    draft: options.Draft = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    data_file: options.DataFile = None,
    split: options.Split = "test",
    num_examples: options.NumExamples = 1000,
    samples_per_prompt: Annotated[
        int | None, typer.Option(min=1, help="Completions of each prompt; by default 2, or 1 at temperature 0.")
    ] = None,
    shots: options.Shots = 0,
    shots_file: options.ShotsFile = None,
    chat: options.Chat = False,
    thinking: options.Thinking = False,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    num_assistant_tokens: Annotated[
        int | None, typer.Option(min=1, help="Draft tokens per round; by default the head's own number, or 5.")
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    batch_size: options.BatchSize = 16,
    seed: options.Seed = 0,
    allow_code_execution: options.AllowCode = False,
    allow_unsafe_code_execution: options.AllowUnsafeCode = False,
    output: options.Output = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Find the most permissive strictness of a head for a tolerated quality drop.

    It becomes the head's default, in its configuration; HEAD/evaluation.json, measured at the earlier default, is
    removed. The exit code is 1 if no strictness was found. Finished calls are kept in --output, by default below
    HEAD/calibration, so that an interrupted run can continue.
    """
    from dataclasses import asdict

    from hf_diversed.cli.loading import load_task, quiet_transformers, read_records, read_shots
    from hf_diversed.evaluation import EvaluationSettings
    from hf_diversed.evaluation.calibrate import calibrate as run
    from hf_diversed.evaluation.calibrate import check_limits
    from hf_diversed.files import write_json
    from hf_diversed.generation.confidence import DEFAULT_NUM_ASSISTANT_TOKENS
    from hf_diversed.head import DiversedHead
    from hf_diversed.tasks import PromptedTask
    from hf_diversed.zoo import load_pair

    quiet_transformers()
    check_limits(max_quality_drop=max_quality_drop, confidence=confidence)
    loaded = DiversedHead.from_pretrained(head).eval()
    task = task or loaded.config.task
    if task is None:
        raise ValueError(f"the head in {head} has no task in its configuration; pass --task.")
    scored = load_task(task, allow_code_execution, allow_unsafe_code_execution)
    gamma = num_assistant_tokens or loaded.config.num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
    settings = EvaluationSettings(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_assistant_tokens=gamma,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        samples_per_prompt=samples_per_prompt or (1 if temperature == 0 else 2),
        seed=seed,
        split=split if data_file is None else Path(data_file).name,
    )
    examples = read_records(scored, split, num_examples, seed, data_file)
    pool = read_shots(scored, shots, shots_file, seed)
    pair = load_pair(target, draft, device, dtype)
    prompted = PromptedTask(scored, pair.tokenizer, pool=pool, shots=shots, chat=chat, thinking=thinking)
    tested = run(
        pair,
        prompted,
        examples,
        loaded.to(pair.target.device),
        settings,
        output or head / "calibration" / f"{task}_temperature-{temperature:g}_gamma-{gamma}",
        max_quality_drop=max_quality_drop,
        confidence=confidence,
    )
    found = tested[0].p_value <= 1.0 - confidence  # the strictest value is tested first
    if found:
        config = json_format.loads((head / "config.json").read_text(encoding="utf-8"))
        values = {name: getattr(loaded.config, name) for name in ("strictness", "calibration")}  # which `run` has set
        write_json(head / "config.json", config | values)
        (head / "evaluation.json").unlink(missing_ok=True)  # measured at the earlier default
    strictness = loaded.config.strictness if found else None
    if json:
        print(json_format.dumps({"strictness": strictness, "tested": [asdict(each) for each in tested]}, indent=1))
    else:
        console.print(_table(tested, scored.metric, max_quality_drop))
    if not found:
        notes.print(f"No strictness was found for a drop of {max_quality_drop:g}, so the head is unchanged.")
        notes.print(
            "More prompts (--num-examples) can exclude smaller drops. Pass another --output; each further calibration "
            "adds its own probability of error."
        )
        raise typer.Exit(1)
    notes.print(
        f"The head's default strictness is now {strictness:g}: a drop of at most {max_quality_drop:g} at "
        f"{confidence:.4g} confidence.",
        highlight=False,
    )


def _table(tested: "list[Tested]", metric: str, max_quality_drop: float) -> Table:
    """Return a table with one line per tested strictness."""
    table = Table(header_style="bold", box=box.SIMPLE)
    for header in ("strictness", "accepted", f"drop in\n{metric}", f"p-value of\na drop > {max_quality_drop:g}"):
        table.add_column(header, justify="right")
    for each in tested:
        accepted = "-" if each.acceptance_rate is None else f"{each.acceptance_rate:.1%}"
        table.add_row(f"{each.strictness:g}", accepted, f"{each.drop:.1%}", f"{each.p_value:.4f}")
    return table
