"""`hf-diversed calibrate`: the most permissive strictness of a head for each tolerated quality drop."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.cli import preparing
from hf_diversed.cli.options import MeasuringOptions, argument, existing_folder, option
from hf_diversed.cli.terminal import console, notes
from hf_diversed.evaluation.calibration import Tested
from hf_diversed.evaluation.calibration import calibrate as run
from hf_diversed.evaluation.certification import FixedSequence
from hf_diversed.evaluation.results import remove_results
from hf_diversed.formatting import percent
from hf_diversed.generation.options import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.head import DiversedHead
from hf_diversed.head.pulling import CONFIG
from hf_diversed.hub import publication, read_records
from hf_diversed.hub.files import CARD
from hf_diversed.running.files import write_json


@dataclass(kw_only=True)
class CalibrateOptions(MeasuringOptions):
    """What to certify."""

    head: Path = argument(  # type: ignore[assignment]
        "Folder of the head; the table of certified settings is written to it.", kind=existing_folder
    )
    max_quality_drop: str = option(
        "Tolerated drop below the target alone, in units of the metric; or several: 0.01,0.02.", "0.01"
    )
    confidence: float = option("Confidence of each certified setting, between 0 and 1.", 0.95)
    num_examples: int = option("Number of prompts.", 1000)
    samples_per_prompt: int = option("Number of completions of each prompt.", 2)
    num_assistant_tokens: int | None = option("Draft tokens per round; by default the head's own, or 5.")
    output: Path | None = option(
        "Folder for finished calls, so that a run can continue; by default one below HEAD/calibration."
    )


def calibrate(options: CalibrateOptions) -> None:
    """Certify strictness settings for `generate(..., diversed_max_drop=)` and write them to the head's configuration
    and card. An interrupted run continues where it stopped."""
    drops = preparing.numbers("--max-quality-drop", options.max_quality_drop, float)
    FixedSequence(drops, options.confidence)  # validates both
    task = preparing.load_task(options)
    head = DiversedHead.from_pretrained(options.head).eval()
    settings = preparing.settings_of(
        options,
        samples_per_prompt=1 if options.temperature == 0 else options.samples_per_prompt,
        num_assistant_tokens=options.num_assistant_tokens
        or head.config.num_assistant_tokens
        or DEFAULT_NUM_ASSISTANT_TOKENS,
    )
    name = f"{options.task}_temperature-{options.temperature:g}_gamma-{settings.num_assistant_tokens}"
    folder = options.head / "calibration" / name if options.output is None else options.output
    preparing.check_output("HEAD", options.head / CONFIG)
    preparing.check_output("--output", folder, folder=True)
    pair, prompted, examples, _ = preparing.load_prompts(options, task, None)
    head.to(pair.target.device)
    if options.overwrite:
        remove_results(folder)
    with preparing.interruptible(folder, folder):
        certified, tested = run(pair, prompted, examples, head, settings, drops, folder, confidence=options.confidence)
    # The weights do not change: write configuration and card only.
    config = json.loads((options.head / CONFIG).read_text(encoding="utf-8"))
    write_json(options.head / CONFIG, config | {"certified_drops": head.config.certified_drops})
    records = read_records(options.head)
    (options.head / CARD).write_bytes(publication(head, records, folder=str(options.head))[CARD])
    console.print(_table(tested, task.metric))
    _report(drops, certified)


def _table(tested: list[Tested], metric: str) -> Table:
    """Return a table with one line per tested strictness."""
    table = Table(header_style="bold", box=box.SIMPLE)
    drops = list(tested[0].p_values)
    headers = ("strictness", "accepted", f"drop in\n{metric}", *(f"p-value of\na drop > {drop:g}" for drop in drops))
    for header in headers:
        table.add_column(header, justify="right")
    for result in tested:
        p_values = (result.p_values.get(drop) for drop in drops)
        cells = ["-" if value is None else f"{value:.4f}" for value in p_values]
        table.add_row(f"{result.strictness:g}", percent(result.acceptance_rate), percent(result.drop), *cells)
    return table


def _report(drops: list[float], certified: list[dict[str, Any]]) -> None:
    by_drop = {entry["max_drop"]: entry for entry in certified}
    for drop in sorted(drops):
        if drop in by_drop:
            entry = by_drop[drop]
            sentence = f"diversed_max_drop={drop:g} uses strictness {entry['strictness']:g}"
            console.print(Text(f"{sentence}, at {entry['confidence']:.0%} confidence."), soft_wrap=True)
        else:
            sentence = f"No strictness was certified for a drop of {drop:g}: more prompts detect smaller drops."
            notes.print(Text(sentence), soft_wrap=True)
