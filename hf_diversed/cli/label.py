"""`hf-diversed label`: measure what keeping rejected draft tokens costs, for `train --objective counterfactual`."""

import math

from hf_diversed.cli import preparing
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import LabelOptions
from hf_diversed.cli.terminal import console, notes
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head.configuration_diversed import MAX_NUM_ASSISTANT_TOKENS
from hf_diversed.tasks import CodeTask
from hf_diversed.tasks.prompted import prompt_rows
from hf_diversed.training.labels import LabelSettings, contains_labels, make_labels
from hf_diversed.verifiers.base import check_range


def label(options: LabelOptions) -> None:
    """Label rejected draft tokens with their cost: the score with the token replaced minus the score with the token
    kept, where the target continues both texts."""
    preparing.check_output("--output", options.output)
    preparing.check_one_process("label")
    check_range("num_assistant_tokens", options.num_assistant_tokens, 1, MAX_NUM_ASSISTANT_TOKENS)
    if options.overwrite and options.output.exists() and not contains_labels(options.output.read_bytes()):
        raise ValueError(
            f"--output {options.output} contains no labels, so --overwrite does not replace it; pass another file."
        )
    settings = LabelSettings(
        options.rejections, options.continuations, options.lookahead, options.seed, options.agreement
    )
    settings.check_temperature(options.temperature)
    task = preparing.load_task(options)
    if options.agreement and not isinstance(task, CodeTask):  # code is compared by its tests
        task.columns = task.columns[: None if options.shots else 1]  # solved examples need references
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
    prompts = [row["prompt"] for row in rows]
    with preparing.resumable(options.output, options.overwrite):
        labels = make_labels(
            pair, task, prompts, records, sampling, settings, options.output, overwrite=options.overwrite
        )
    noise = "" if math.isnan(labels.noise) else f", noise {labels.noise:.4f} per label"
    notes.print(f"{len(labels.cost)} labels, mean cost {float(labels.cost.mean()):.4f}{noise}", highlight=False)
    console.print(str(options.output), markup=False, highlight=False, soft_wrap=True)
