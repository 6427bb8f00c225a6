"""`hf-diversed make-draft`: make a draft model from the first layers of a target model."""

from dataclasses import dataclass
from pathlib import Path

from hf_diversed._compat import num_layers
from hf_diversed.cli.models import best_device, check_device, check_dtype
from hf_diversed.cli.options import DeviceOptions, argument, option, required
from hf_diversed.cli.preparing import check_new_folder, remove_earlier_run
from hf_diversed.cli.terminal import console, notes
from hf_diversed.provenance import provenance
from hf_diversed.running.pair import load_model, load_tokenizer
from hf_diversed.training import draft_making as making
from hf_diversed.zoo import packaged


@dataclass(kw_only=True)
class MakeDraftOptions(DeviceOptions):
    """What to copy."""

    target: str = argument(f"Hub id, folder or one of {', '.join(packaged.MODELS)}.")
    layers: int = required("Number of layers to copy, the first ones of the target.")
    output: Path = required("Folder for the draft model.")
    vocabulary: int | None = option("Number of output rows to keep, those of frequent tokens; by default all.")
    text: Path | None = option(
        "File to count tokens in: text, or JSON Lines such as target_samples.jsonl of tune-draft."
    )
    overwrite: bool = option("Remove the files of an earlier run from the folder.", False)


def make_draft(options: MakeDraftOptions) -> None:
    """Copy the embeddings, first layers and output of a target into a draft model, which `tune-draft --all-weights
    true` trains."""
    target, output, vocabulary = options.target, options.output, options.vocabulary
    if (vocabulary is None) != (options.text is None):
        raise ValueError("--vocabulary and --text go together: how many tokens to keep, and where they are counted.")
    if options.device is not None:
        check_device(options.device)
    check_new_folder("--output", output, options.overwrite, (target,))
    kind = check_dtype(options.dtype)
    name = packaged.resolve(target)
    tokenizer = load_tokenizer(name)
    counts = None if options.text is None else making.count_ids(options.text, tokenizer)
    model = load_model(name, options.device or best_device(), kind)
    if options.layers > (total := num_layers(model)):
        raise ValueError(
            f"--layers must be at most {total}, the number of layers of the target, got {options.layers}."
        )
    kept = None
    if counts is not None and vocabulary is not None:
        kept = making.frequent_ids(counts, vocabulary, model, tokenizer)
        share = sum(counts[token] for token in kept) / counts.total()
        notes.print(f"{len(kept):,} output rows cover {share:.2%} of {counts.total():,} tokens counted.")
    draft = making.make_draft(model, range(options.layers), kept)
    record = provenance(device=model.device) | {
        "target": Path(target).name if Path(target).is_dir() else target,
        "layers": list(range(options.layers)),
        "vocabulary": vocabulary,
    }
    if options.overwrite:
        remove_earlier_run(output)
    making.save_draft(draft, tokenizer, output, record)
    notes.print(f"The draft model has {draft.num_parameters() / 1e6:.1f} M parameters.", highlight=False)
    console.print(str(output), markup=False, highlight=False, soft_wrap=True)
