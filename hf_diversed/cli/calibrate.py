"""`hf-diversed calibrate`: the most permissive strictness of a head for each tolerated quality drop."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, notes


if TYPE_CHECKING:
    from hf_diversed.evaluation.calibration import Tested


def calibrate(
    head: Annotated[
        Path,
        typer.Argument(
            exists=True, file_okay=False, help="Folder of the head; the table of certified settings is written to it."
        ),
    ],
    task: options.TaskName,
    max_quality_drop: Annotated[
        str,
        typer.Option(help="Tolerated drop below the target alone, in units of the metric; several as in 0.01,0.02."),
    ] = "0.01",
    confidence: Annotated[float, typer.Option(help="Confidence of each certified setting, between 0 and 1.")] = 0.95,
    target: options.Target = None,
    draft: options.Draft = None,
    num_examples: options.NumExamples = 1000,
    samples_per_prompt: options.SamplesPerPrompt = 2,
    split: options.Split = "test",
    data_file: options.DataFile = None,
    shots: options.Shots = 0,
    shots_file: options.ShotsFile = None,
    chat: options.Chat = False,
    seed: options.Seed = 0,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    num_assistant_tokens: options.Gamma = None,
    batch_size: options.BatchSize = 16,
    max_new_tokens: options.MaxNewTokens = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps what is done, to continue; by default one below HEAD/calibration."),
    ] = None,
    overwrite: options.Overwrite = False,
    allow_code_execution: options.AllowCode = False,
    unsafe_code_execution: options.UnsafeCode = False,
) -> None:
    """Certify dials for `generate(..., diversed_max_drop=)` and put them into the head's configuration and card; an
    interrupted run goes on where it stopped."""
    from hf_diversed.cli import preparing
    from hf_diversed.evaluation import EvaluationSettings
    from hf_diversed.evaluation.calibration import calibrate as run
    from hf_diversed.evaluation.certification import FixedSequence
    from hf_diversed.evaluation.results import remove_results
    from hf_diversed.generation.planning import DEFAULT_NUM_ASSISTANT_TOKENS
    from hf_diversed.head import DiversedHead
    from hf_diversed.head.pulling import CONFIG
    from hf_diversed.tasks import load_records

    drops = preparing.numbers("--max-quality-drop", max_quality_drop, float)
    FixedSequence(drops, confidence)  # validates both
    judge = preparing.load_task(task, allow_code_execution, unsafe_code_execution)
    loaded = DiversedHead.from_pretrained(head).eval()
    settings = EvaluationSettings(
        num_examples=num_examples,
        samples_per_prompt=1 if temperature == 0 else samples_per_prompt,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_assistant_tokens=num_assistant_tokens
        or loaded.config.num_assistant_tokens
        or DEFAULT_NUM_ASSISTANT_TOKENS,
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        add_special_tokens=not chat,
        split=split if data_file is None else Path(data_file).name,
    )
    kept = f"{task}_temperature-{temperature:g}_gamma-{settings.num_assistant_tokens}"
    folder = head / "calibration" / kept if output is None else output
    preparing.check_output("HEAD", head / CONFIG)
    preparing.check_output("--output", folder, folder=True)
    examples = load_records(judge, split, num_examples, seed, data_file)
    judge.check_scoring(examples)
    pool = preparing.load_shots(judge, shots, shots_file, seed)
    pair, _ = preparing.load_models(target, draft, None, device, task, chat, dtype)
    asked = preparing.prompted(judge, pair, pool, shots, chat)
    loaded.to(pair.target.device)
    if overwrite:
        remove_results(folder)
    with preparing.interruptible(folder, folder):
        certified, tested = run(pair, asked, examples, loaded, settings, drops, folder, confidence=confidence)
    _write(head, loaded)
    console.print(_table(tested, judge.metric))
    _tell(drops, certified)


def _write(folder: Path, head: Any) -> None:
    """Write the head's table to its configuration and its card; the weights do not change."""
    from hf_diversed.head.pulling import CONFIG
    from hf_diversed.hub import publication, read_records
    from hf_diversed.hub.files import CARD
    from hf_diversed.running.files import write_json

    settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    write_json(folder / CONFIG, settings | {"certified_drops": head.config.certified_drops})
    (folder / CARD).write_bytes(publication(head, read_records(folder), folder=str(folder))[CARD])


def _table(tested: "list[Tested]", metric: str) -> Table:
    """Return a table with one line per tested strictness."""
    from hf_diversed.formatting import percent

    table = Table(header_style="bold", box=box.SIMPLE)
    drops = list(tested[0].p_values)
    for header in ("dial", "accepted", f"drop in\n{metric}", *(f"p-value of\na drop > {drop:g}" for drop in drops)):
        table.add_column(header, justify="right")
    for dial in tested:
        values = (dial.p_values.get(drop) for drop in drops)
        shown = ["-" if value is None else f"{value:.4f}" for value in values]
        table.add_row(f"{dial.strictness:g}", percent(dial.acceptance_rate), percent(dial.drop), *shown)
    return table


def _tell(drops: list[float], certified: list[dict[str, Any]]) -> None:
    found = {entry["max_drop"]: entry for entry in certified}
    for drop in sorted(drops):
        if drop in found:
            entry = found[drop]
            words = f"diversed_max_drop={drop:g} takes strictness {entry['strictness']:g}"
            console.print(Text(f"{words}, at {entry['confidence']:.0%} confidence."), soft_wrap=True)
        else:
            words = f"No dial was certified for a drop of {drop:g}: more prompts tell smaller drops apart."
            notes.print(Text(words), soft_wrap=True)
