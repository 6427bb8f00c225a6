"""The embedded pair as folders that an engine loads: `python -m embedded.export FOLDER`."""

import shutil
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_diversed.zoo import load_demo_pair
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS


HEAD_SIZE = 32  # the smallest that vLLM's attention on CPUs supports


def export_demo_pair(folder: Path) -> None:
    """Write the folders `target` and `draft`, each with the tokenizer, and the packaged heads of both kinds.

    The models are written in float32. Attention heads narrower than `HEAD_SIZE` are padded to it.
    """
    pair = load_demo_pair()
    for role in ("target", "draft"):
        model = pad_heads(getattr(pair, role), HEAD_SIZE)
        model.save_pretrained(folder / role)
        pair.tokenizer.save_pretrained(folder / role)
    for heads in (HEADS, MIXTURE):
        shutil.copytree(WEIGHTS / heads, folder / heads, dirs_exist_ok=True)


@torch.no_grad()
def pad_heads(model: LlamaForCausalLM, size: int) -> LlamaForCausalLM:
    """Return an equivalent model with attention heads of `size`, or the model itself if they are wide enough.

    Queries, keys and values are padded with zeros. Queries are multiplied by sqrt(size / old size), since attention
    scores are divided by sqrt(size). Rotary frequencies depend on 1 / size, so their base is raised to the power
    size / old size, which keeps the old angles.
    """
    old = model.config.head_dim
    if old >= size:
        return model
    # Rotation pairs position i with i + size / 2, so both halves are padded at their ends.
    place = torch.arange(old)
    place[old // 2 :] += (size - old) // 2
    fields = model.config.to_dict()
    rope = fields.pop("rope_parameters")
    rope = rope | {"rope_theta": rope["rope_theta"] ** (size / old)}
    wide = LlamaForCausalLM(LlamaConfig(**fields | {"head_dim": size, "rope_parameters": rope})).to(model.dtype).eval()
    state = wide.state_dict()
    for name, weights in model.state_dict().items():
        state[name] = _padded(name.rpartition(".weight")[0].rpartition(".")[2], weights, place, size)
    wide.load_state_dict(state)
    return wide


def _padded(layer: str, weights: torch.Tensor, place: torch.Tensor, size: int) -> torch.Tensor:
    """Return a projection with every head's old rows (columns of o_proj) at the indices `place` of `size`."""
    if layer not in ("q_proj", "k_proj", "v_proj", "o_proj"):
        return weights
    if layer == "o_proj":
        return _padded("v_proj", weights.T, place, size).T
    scale = (size / len(place)) ** 0.5 if layer == "q_proj" else 1.0
    heads = weights.new_zeros(len(weights) // len(place), size, weights.shape[1])
    heads[:, place] = scale * weights.view(-1, len(place), weights.shape[1])
    return heads.flatten(0, 1)


if __name__ == "__main__":
    export_demo_pair(Path(sys.argv[1]))
