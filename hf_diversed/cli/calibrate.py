"""`hf-diversed calibrate`: the most permissive strictness of a head for a tolerated quality drop."""

import json

from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.cli import preparing
from hf_diversed.cli.models import check_draft_model
from hf_diversed.cli.options import CalibrateOptions
from hf_diversed.cli.terminal import console, notes
from hf_diversed.evaluation.calibration import Tested, check_shares
from hf_diversed.evaluation.calibration import calibrate as run
from hf_diversed.files import write_json
from hf_diversed.formatting import percent
from hf_diversed.generation.options import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.head import DiversedHead
from hf_diversed.head.configuration_diversed import MAX_NUM_ASSISTANT_TOKENS
from hf_diversed.head.pulling import CONFIG
from hf_diversed.verifiers.base import check_range


def calibrate(options: CalibrateOptions) -> None:
    """Find the lowest strictness within a tolerated quality drop. It becomes the head's default, in its configuration.
    An interrupted run continues where it stopped."""
    preparing.check_folder("HEAD", options.head)
    check_shares(options.max_quality_drop, options.confidence)
    preparing.check_one_process("calibrate")
    check_draft_model(options.draft)
    task = preparing.load_task(options)
    head = DiversedHead.from_pretrained(options.head).eval()
    gamma = options.num_assistant_tokens or head.config.num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
    check_range("num_assistant_tokens", gamma, 1, MAX_NUM_ASSISTANT_TOKENS)
    settings = preparing.settings_of(
        options,
        samples_per_prompt=options.samples_per_prompt or (1 if options.temperature == 0 else 2),
        num_assistant_tokens=gamma,
    )
    name = f"{options.task}_temperature-{options.temperature:g}_gamma-{gamma}"
    folder = options.head / "calibration" / name if options.output is None else options.output
    preparing.check_output("HEAD", options.head / CONFIG)
    preparing.check_output("--output", folder, folder=True)
    if folder.resolve() == options.head.resolve():
        raise ValueError(
            f"--output must differ from HEAD, whose evaluation.json it would replace, got {folder}; leave it out to "
            "use HEAD/calibration."
        )
    pair, prompted, examples, _ = preparing.load_prompts(options, task, None)
    head.to(pair.target.device)
    with preparing.resumable(folder, options.overwrite):
        tested = run(
            pair,
            prompted,
            examples,
            head,
            settings,
            folder,
            max_quality_drop=options.max_quality_drop,
            confidence=options.confidence,
            overwrite=options.overwrite,
        )
    console.print(_table(tested, task.metric, options.max_quality_drop))
    if tested[0].p_value > 1.0 - options.confidence:
        sentence = (
            f"No strictness was found for a drop of {options.max_quality_drop:g}, so the head is unchanged. More "
            "prompts detect smaller drops."
        )
        notes.print(Text(sentence), soft_wrap=True)
        return
    # The weights do not change: write the configuration only.
    config = json.loads((options.head / CONFIG).read_text(encoding="utf-8"))
    found = {name: getattr(head.config, name) for name in ("strictness", "calibration")}
    write_json(options.head / CONFIG, config | found)
    sentence = (
        f"The head's default strictness is now {head.config.strictness:g}: a drop of at most "
        f"{options.max_quality_drop:g} at {100 * options.confidence:g}% confidence."
    )
    console.print(Text(sentence), soft_wrap=True)


def _table(tested: list[Tested], metric: str, max_quality_drop: float) -> Table:
    """Return a table with one line per tested strictness."""
    table = Table(header_style="bold", box=box.SIMPLE)
    for header in ("strictness", "accepted", f"drop in\n{metric}", f"p-value of\na drop > {max_quality_drop:g}"):
        table.add_column(header, justify="right")
    for result in tested:
        shares = percent(result.acceptance_rate), percent(result.drop)
        table.add_row(f"{result.strictness:g}", *shares, f"{result.p_value:.4f}")
    return table
