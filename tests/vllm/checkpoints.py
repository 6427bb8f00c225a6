"""Random draft heads for the embedded target, whose width is 256, in the formats of EAGLE-3 and Medusa."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file


WIDTH, VOCAB, DRAFT_VOCAB, HEADS = 256, 1024, 200, 3


def export_eagle3(folder: Path) -> Path:
    """Write an EAGLE-3 head that reads three layers of the target, with a reduced vocabulary; return its folder."""
    norms = ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm")
    shapes = {
        "fc": (WIDTH, 3 * WIDTH),
        **{f"midlayer.self_attn.{name}_proj": (WIDTH, 2 * WIDTH) for name in "qkv"},
        "midlayer.self_attn.o_proj": (WIDTH, WIDTH),
        **{f"midlayer.mlp.{name}_proj": (2 * WIDTH, WIDTH) for name in ("gate", "up")},
        "midlayer.mlp.down_proj": (WIDTH, 2 * WIDTH),
        "lm_head": (DRAFT_VOCAB, WIDTH),
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "tie_word_embeddings": False,
    }
    weights = _random(shapes) | {f"{name}.weight": torch.ones(WIDTH) for name in norms}
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:DRAFT_VOCAB].sort().values
    return _write(folder, config, weights | {"d2t": ids - torch.arange(DRAFT_VOCAB)})


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
    }
    return _write(folder, config, _random(shapes))


def _random(shapes: dict[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"{name}.weight": 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def _write(folder: Path, config: dict, weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    save_file(weights, folder / "model.safetensors")
    return folder
