"""Random Medusa heads for the embedded target, whose width is 256."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


WIDTH, VOCAB, HEADS = 256, 1024, 3


def export_medusa(folder: Path) -> Path:
    """Write Medusa heads; return their folder."""
    shapes = {f"blocks.{head}.layers.0": (WIDTH, WIDTH) for head in range(HEADS)}
    shapes |= {f"lm_heads.{head}": (VOCAB, WIDTH) for head in range(HEADS)}
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": WIDTH,
        "vocab_size": VOCAB,
        "num_heads": HEADS,
        "num_hidden_layers": 1,
        "dtype": "float32",
    }
    generator = torch.Generator().manual_seed(0)
    weights = {f"{name}.weight": 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder
