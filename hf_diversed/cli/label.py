"""`hf-diversed label`: measure what keeping rejected draft tokens costs, for `train --objective counterfactual`."""

from dataclasses import dataclass
from pathlib import Path

from hf_diversed.cli import preparing
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import DeviceOptions, ScoringOptions, option, required
from hf_diversed.cli.terminal import console, notes
from hf_diversed.running.sampling import Sampling
from hf_diversed.tasks.prompted import prompt_rows
from hf_diversed.training.labels import LabelSettings, make_labels


@dataclass(kw_only=True)
class LabelOptions(ScoringOptions, DeviceOptions):
    """What to label."""

    output: Path = required("JSON Lines file for the labels; an interrupted run continues.")
    num_examples: int = option("Number of prompts; a smaller data file is used whole.", 1024)
    rejections: int = option("Largest number of labels per completion.", 3)
    continuations: int = option("Continuations of each branch of a rejection.", 4)
    lookahead: int = option("Number of later draft tokens whose features are recorded, 0 to 16.", 4)
    split: str = option("Split of the task.", "train")
    seed: int = option("Seed of prompts and sampling.", 0)
    temperature: float = option("Sampling temperature; 0 decodes greedily.", 1.0)
    num_assistant_tokens: int = option("Draft tokens per round.", 5)
    batch_size: int = option("Texts decoded together.", 128)
    max_new_tokens: int | None = option("Longest answer, in tokens; by default the task's own.")


def label(options: LabelOptions) -> None:
    """Label rejected draft tokens with their cost: the score with the token replaced minus the score with the token
    kept, where the target continues both texts."""
    preparing.check_output("--output", options.output)
    task = preparing.load_task(options)
    records = preparing.read_records(task, options.split, options.num_examples, options.seed, options.data_file)
    rows = prompt_rows(task, records, pool=records, shots=options.shots, chat=options.chat)
    pair = load_pair(options.target, options.draft, options.device, options.chat, options.dtype)
    sampling = Sampling(
        temperature=options.temperature,
        num_assistant_tokens=options.num_assistant_tokens,
        max_new_tokens=options.max_new_tokens or task.max_new_tokens,
        batch_size=options.batch_size,
        stop_strings=() if options.chat else tuple(task.stop_strings),
    )
    settings = LabelSettings(options.rejections, options.continuations, options.lookahead, options.seed)
    if options.overwrite:
        options.output.unlink(missing_ok=True)
    prompts = [row["prompt"] for row in rows]
    with preparing.interruptible(options.output, options.output):
        labels = make_labels(pair, task, prompts, records, sampling, settings, options.output)
    cost, noise = float(labels.cost.mean()), labels.noise
    notes.print(f"{len(labels.cost)} labels, mean cost {cost:.4f}, noise {noise:.4f} per label", highlight=False)
    console.print(str(options.output), markup=False, highlight=False, soft_wrap=True)
