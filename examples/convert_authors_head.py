"""Convert a head of the authors' code (github.com/comeusr/diversed) to a folder for `DiversedHead.from_pretrained`.

    python examples/convert_authors_head.py ensemble_head.bin head --target-hidden-size 4096 --draft-hidden-size 2048

The file contains one linear layer with two outputs, on the last hidden states of draft and target, in this order. The
second entry of its softmax is the weight on the target: the sigmoid of the difference of the two logits.
"""

import argparse
from pathlib import Path

import torch

from hf_diversed import DiversedHead, DiversedHeadConfig


def convert(path: Path, **config) -> DiversedHead:
    """Return the head in a file; `config` has the fields of `DiversedHeadConfig`, including both hidden sizes.

    Raises:
        ValueError: if the file is not such a head, or the sizes do not add up to its width.
    """
    tensors = torch.load(path, map_location="cpu", weights_only=True)  # executes no code from the file
    if not isinstance(tensors, dict) or set(tensors) != {"summary.weight", "summary.bias"}:
        raise ValueError(f"{path} must contain the tensors summary.weight and summary.bias.")
    weight, bias = tensors["summary.weight"].float(), tensors["summary.bias"].float()
    sizes = [config["draft_hidden_size"], config["target_hidden_size"]]
    if weight.shape != (2, sum(sizes)) or bias.shape != (2,):
        raise ValueError(
            f"summary.weight and summary.bias must have shapes [2, {sum(sizes)}] and [2] for the hidden sizes "
            f"{sizes[1]} (target) and {sizes[0]} (draft), got {list(weight.shape)} and {list(bias.shape)}."
        )
    head = DiversedHead(DiversedHeadConfig(head_type="linear", features="hidden", normalize=False, **config)).eval()
    draft_part, target_part = (weight[1] - weight[0]).split(sizes)
    with torch.no_grad():
        head.out.weight.copy_(torch.cat([target_part, draft_part])[None])
        head.out.bias.copy_((bias[1] - bias[0])[None])
    return head


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Convert a head of the authors' code.")
    parser.add_argument("file", type=Path, help="ensemble_head.bin")
    parser.add_argument("output", type=Path, help="Folder for the head.")
    parser.add_argument("--target-hidden-size", type=int, required=True)
    parser.add_argument("--draft-hidden-size", type=int, required=True)
    parser.add_argument("--target", dest="base_model_name_or_path", help="Hub id, for the head's configuration.")
    parser.add_argument("--draft", dest="assistant_model_name_or_path", help="Hub id, for the head's configuration.")
    arguments = vars(parser.parse_args())
    head = convert(arguments.pop("file"), **{name: value for name, value in arguments.items() if name != "output"})
    head.save_pretrained(arguments["output"])
    print(f"{arguments['output']}: {head.num_parameters():,} parameters")
