"""`hf-diversed convert`: a head of the authors' code to a folder that `DiversedHead.from_pretrained` reads."""

from typing import Annotated

import torch
import typer
from rich.text import Text
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_diversed.cli.options import check_pair
from hf_diversed.cli.terminal import console, errors_in_words
from hf_diversed.head import DiversedHeadConfig
from hf_diversed.head.conversion import convert_head


Width = Annotated[int | None, typer.Option(min=1, help="Width of what that model's output embedding sees.")]


def convert(
    file: Annotated[str, typer.Argument(help="The authors' ensemble_head.bin, or the folder it is in.")],
    output: Annotated[str, typer.Argument(help="Folder to write the head to.")],
    target_hidden_size: Width = None,
    draft_hidden_size: Width = None,
    target: Annotated[str | None, typer.Option(help="Hub id or folder; only its config is read.")] = None,
    draft: Annotated[str | None, typer.Option(help="Hub id or folder; only its config is read.")] = None,
) -> None:
    """Convert a head of the authors' code; sizes from an ensemble_config.json beside it, from a pair, or as given."""
    with errors_in_words():
        check_pair(target, draft)
        known = {}
        if target is not None and draft is not None:
            config = DiversedHeadConfig.for_pair(_without_weights(target), _without_weights(draft))
            known = {name: getattr(config, name) for name in _OF_A_PAIR}
        sizes = {"target_hidden_size": target_hidden_size, "draft_hidden_size": draft_hidden_size}
        head = convert_head(file, **known | {name: size for name, size in sizes.items() if size is not None})
        head.save_pretrained(output)
        config = head.config
        widths = f"target {config.target_hidden_size}, draft {config.draft_hidden_size}"
        console.print(Text(f"{output}: hidden sizes {widths}, {head.num_parameters():,} parameters"))


_OF_A_PAIR = (
    "target_hidden_size",
    "draft_hidden_size",
    "vocab_size",
    "base_model_name_or_path",
    "assistant_model_name_or_path",
)


def _without_weights(name: str) -> PreTrainedModel:
    """The model's shapes alone: a config may not say what the output embedding sees."""
    config = AutoConfig.from_pretrained(name)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.name_or_path = name
    return model
