"""`hf-diversed make-draft`: make a draft model from layers of a target that has none."""

from pathlib import Path
from typing import Annotated

import typer

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, notes


MEASURED = "measured"


def make_draft(
    target: Annotated[str, typer.Argument(help=f"Hub id, folder or one of {options.PACKAGED}.", show_default=False)],
    layers: Annotated[int, typer.Option(min=1, help="Number of the target's layers.")],
    output: Annotated[Path, typer.Option(help="Folder for the draft model.")],
    choose: Annotated[
        str,
        typer.Option(
            help="Which layers: first, first+last, ends, even, numbers as in 0,1,2,29; or measured, the one of these "
            "that agrees most before it is tuned."
        ),
    ] = MEASURED,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=1, help="Number of output rows to keep, those of frequent tokens; by default all."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="File to count tokens in: text, or JSON Lines such as target_samples.jsonl of tune-draft."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples that choose the layers.")] = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Copy embeddings, layers and output of a target into a draft, which `tune-draft --all-weights true` trains."""
    from hf_diversed.cli.models import best_device, check_device, check_dtype
    from hf_diversed.cli.preparing import check_new_folder, remove_earlier_run
    from hf_diversed.provenance import provenance
    from hf_diversed.running.pair import load_model, load_tokenizer
    from hf_diversed.training import draft_making as making
    from hf_diversed.zoo import packaged

    if (vocabulary is None) != (text is None):
        raise ValueError("--vocabulary and --text go together: how many tokens to keep, and where they are counted.")
    _check_choice(choose, layers)
    if device is not None:
        check_device(device)
    check_new_folder("--output", output, overwrite, (target,))
    kind = check_dtype(dtype)
    name = packaged.resolve(target)
    tokenizer = load_tokenizer(name)
    counts = None if text is None else making.count_ids(text, tokenizer)
    model = load_model(name, device or best_device(), kind)
    kept = None
    if counts is not None and vocabulary is not None:
        kept = making.frequent_ids(counts, vocabulary, model, tokenizer)
        share = sum(counts[token] for token in kept) / counts.total()
        notes.print(f"{len(kept):,} output rows cover {share:.2%} of {counts.total():,} tokens counted.")
    samples = making.sample_target(model, tokenizer, seed=seed)
    chosen, measured = _choose(model, choose, layers, samples)
    draft = making.make_draft(model, chosen, kept)
    record = provenance(seed, model.device) | {
        "target": Path(target).name if Path(target).is_dir() else target,
        "layers": chosen,
        "choices": measured,
        "vocabulary": vocabulary,
        "acceptance": making.agreement(model, draft, samples),
    }
    if overwrite:
        remove_earlier_run(output)
    making.save_draft(draft, tokenizer, output, record)
    for choice, value in measured.items():
        notes.print(f"{choice}: {value:.2%} of drafts would be accepted", highlight=False)
    notes.print(
        f"Layers {', '.join(map(str, chosen))}: {draft.num_parameters() / 1e6:.1f} M parameters, and "
        f"{record['acceptance']:.2%} of drafts accepted before it is tuned.",
        highlight=False,
    )
    console.print(str(output), markup=False, highlight=False, soft_wrap=True)


def _check_choice(choose: str, layers: int) -> None:
    from hf_diversed.cli.preparing import numbers
    from hf_diversed.training.draft_making import CHOICES

    if choose[:1].isdigit():
        if (count := len(numbers("--choose", choose, int))) != layers:
            raise ValueError(f"--choose {choose} names {count} layers, but --layers is {layers}.")
    elif choose not in (*CHOICES, MEASURED):
        known = ", ".join((MEASURED, *CHOICES))
        raise ValueError(f"--choose must be one of {known}, or numbers as in 0,1,2,29, got {choose!r}.")


def _choose(model, choose: str, layers: int, samples) -> tuple[list[int], dict[str, float]]:
    """Return the layers that an option selects, and the measurements used to choose them."""
    from hf_diversed._compat import num_layers
    from hf_diversed.cli.preparing import numbers
    from hf_diversed.training.draft_making import CHOICES, choose_layers

    total = num_layers(model)
    if layers > total:
        raise ValueError(f"--layers must be at most {total}, all that the target has, got {layers}.")
    if choose == MEASURED:
        return choose_layers(model, layers, samples)
    return CHOICES[choose](total, layers) if choose in CHOICES else numbers("--choose", choose, int), {}
