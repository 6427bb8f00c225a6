"""`hf-diversed make-draft`: make a draft model from layers of a target that has none."""

from dataclasses import dataclass
from pathlib import Path

from hf_diversed._compat import num_layers
from hf_diversed.cli.models import best_device, check_device, check_dtype
from hf_diversed.cli.options import DeviceOptions, argument, option, required
from hf_diversed.cli.preparing import check_new_folder, numbers, remove_earlier_run
from hf_diversed.cli.terminal import console, notes
from hf_diversed.provenance import provenance
from hf_diversed.running.pair import load_model, load_tokenizer
from hf_diversed.training import draft_making as making
from hf_diversed.training.draft_making import CHOICES, choose_layers
from hf_diversed.zoo import packaged


MEASURED = "measured"


@dataclass(kw_only=True)
class MakeDraftOptions(DeviceOptions):
    """What to copy."""

    target: str = argument(f"Hub id, folder or one of {', '.join(packaged.MODELS)}.")
    layers: int = required("Number of the target's layers.")
    output: Path = required("Folder for the draft model.")
    choose: str = option(
        "Which layers: first, first+last, ends, even, numbers as in 0,1,2,29; or measured, the choice with the "
        "highest acceptance before tuning.",
        MEASURED,
    )
    vocabulary: int | None = option("Number of output rows to keep, those of frequent tokens; by default all.")
    text: Path | None = option(
        "File to count tokens in: text, or JSON Lines such as target_samples.jsonl of tune-draft."
    )
    seed: int = option("Seed of the samples that choose the layers.", 0)
    overwrite: bool = option("Remove the files of an earlier run from the folder.", False)


def make_draft(options: MakeDraftOptions) -> None:
    """Copy embeddings, layers and output of a target into a draft model, which `tune-draft --all-weights true`
    trains."""
    target, output, vocabulary = options.target, options.output, options.vocabulary
    if (vocabulary is None) != (options.text is None):
        raise ValueError("--vocabulary and --text go together: how many tokens to keep, and where they are counted.")
    _check_choice(options.choose, options.layers)
    if options.device is not None:
        check_device(options.device)
    check_new_folder("--output", output, options.overwrite, (target,))
    kind = check_dtype(options.dtype)
    name = packaged.resolve(target)
    tokenizer = load_tokenizer(name)
    counts = None if options.text is None else making.count_ids(options.text, tokenizer)
    model = load_model(name, options.device or best_device(), kind)
    kept = None
    if counts is not None and vocabulary is not None:
        kept = making.frequent_ids(counts, vocabulary, model, tokenizer)
        share = sum(counts[token] for token in kept) / counts.total()
        notes.print(f"{len(kept):,} output rows cover {share:.2%} of {counts.total():,} tokens counted.")
    samples = making.sample_target(model, tokenizer, seed=options.seed)
    chosen, measured = _choose(model, options.choose, options.layers, samples)
    draft = making.make_draft(model, chosen, kept)
    record = provenance(options.seed, model.device) | {
        "target": Path(target).name if Path(target).is_dir() else target,
        "layers": chosen,
        "choices": measured,
        "vocabulary": vocabulary,
        "acceptance": making.agreement(model, draft, samples),
    }
    if options.overwrite:
        remove_earlier_run(output)
    making.save_draft(draft, tokenizer, output, record)
    for choice, value in measured.items():
        notes.print(f"{choice}: {value:.2%} of draft tokens would be accepted", highlight=False)
    notes.print(
        f"Layers {', '.join(map(str, chosen))}: {draft.num_parameters() / 1e6:.1f} M parameters, and "
        f"{record['acceptance']:.2%} of draft tokens accepted before tuning.",
        highlight=False,
    )
    console.print(str(output), markup=False, highlight=False, soft_wrap=True)


def _check_choice(choose: str, layers: int) -> None:
    if choose[:1].isdigit():
        if (count := len(numbers("--choose", choose, int))) != layers:
            raise ValueError(f"--choose {choose} names {count} layers, but --layers is {layers}.")
    elif choose not in (*CHOICES, MEASURED):
        known = ", ".join((MEASURED, *CHOICES))
        raise ValueError(f"--choose must be one of {known}, or numbers as in 0,1,2,29, got {choose!r}.")


def _choose(model, choose: str, layers: int, samples) -> tuple[list[int], dict[str, float]]:
    """Return the layers that an option selects, and the measurements used to choose them."""
    total = num_layers(model)
    if layers > total:
        raise ValueError(f"--layers must be at most {total}, the number of layers of the target, got {layers}.")
    if choose == MEASURED:
        return choose_layers(model, layers, samples)
    return CHOICES[choose](total, layers) if choose in CHOICES else numbers("--choose", choose, int), {}
