"""`hf-diversed convert`: convert a head of the authors' code to a folder for `DiversedHead.from_pretrained`."""

from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from hf_diversed.cli.models import check_pair, without_weights
from hf_diversed.cli.options import argument, option
from hf_diversed.cli.preparing import check_new_folder, remove_earlier_run
from hf_diversed.cli.terminal import console
from hf_diversed.head import DiversedHeadConfig
from hf_diversed.head.conversion import CONFIG_NAME, WEIGHTS_NAME, convert_head


_WIDTH = "Width of the hidden states that enter the model's output embedding."
_PAIR_FIELDS = (
    "target_hidden_size",
    "draft_hidden_size",
    "vocab_size",
    "base_model_name_or_path",
    "assistant_model_name_or_path",
)


@dataclass(kw_only=True)
class ConvertOptions:
    """What to convert."""

    file: Path = argument("The authors' ensemble_head.bin, or its folder.")
    output: Path = argument("Folder for the head.")
    target_hidden_size: int | None = option(_WIDTH)
    draft_hidden_size: int | None = option(_WIDTH)
    target: str | None = option("Hub id or folder; only its configuration is read.")
    draft: str | None = option("Hub id or folder; only its configuration is read.")
    overwrite: bool = option("Remove the files of an earlier run from the folder.", False)


def convert(options: ConvertOptions) -> None:
    """Convert a head of the authors' code. Hidden sizes come from options, a pair, or an ensemble_config.json."""
    target, draft, file = options.target, options.draft, options.file
    check_pair(target, draft)
    check_new_folder("OUTPUT", options.output, options.overwrite, (str(file), target, draft))
    fields = {}
    if target is not None and draft is not None:
        config = DiversedHeadConfig.for_pair(without_weights(target), without_weights(draft))
        fields = {name: getattr(config, name) for name in _PAIR_FIELDS}
    sizes = {"target_hidden_size": options.target_hidden_size, "draft_hidden_size": options.draft_hidden_size}
    fields |= {name: size for name, size in sizes.items() if size is not None}
    weights = file / WEIGHTS_NAME if file.is_dir() else file
    if not fields and weights.is_file() and not (weights.parent / CONFIG_NAME).is_file():
        raise ValueError(
            f"{weights} contains one matrix whose width is the sum of both hidden sizes, so one of them is needed, "
            "an integer >= 1: pass --target-hidden-size 4096 --draft-hidden-size 2048 (Llama 3.1 8B with Llama 3.2 "
            f"1B), or --target and --draft, or put {CONFIG_NAME} in the same folder."
        )
    head = convert_head(file, **fields)
    if options.overwrite:
        remove_earlier_run(options.output)
    head.save_pretrained(options.output)
    config = head.config
    widths = f"target {config.target_hidden_size}, draft {config.draft_hidden_size}"
    console.print(
        Text(f"{options.output}: hidden sizes {widths}, {head.num_parameters():,} parameters"), soft_wrap=True
    )
