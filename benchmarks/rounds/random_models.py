"""Models with random weights and the configurations of published models."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel


_SHAPES = Path(__file__).parent / "configs"


def shape_names() -> list[str]:
    """Return the names of the configurations in `configs/`."""
    return sorted(path.stem for path in _SHAPES.glob("*.json"))


def random_model(
    shape: str | Path,
    *,
    num_layers: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> PreTrainedModel:
    """Build a causal LM with random weights.

    Args:
        shape: a name from `shape_names()`, or the path of a file like the Hub's `config.json`; for a multimodal
            configuration the text model is built.
        num_layers: maximum number of layers.

    Raises:
        ValueError: for an unknown name or a file that is not a model configuration.
    """
    fields = _read_fields(shape)
    if num_layers is not None:
        if num_layers < 1:
            raise ValueError(f"`num_layers` must be >= 1, got {num_layers!r}.")
        fields["num_hidden_layers"] = min(num_layers, fields["num_hidden_layers"])
        if fields.get("layer_types") is not None:
            fields["layer_types"] = fields["layer_types"][: fields["num_hidden_layers"]]
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def _read_fields(shape: str | Path) -> dict[str, Any]:
    path = _SHAPES / f"{shape}.json" if str(shape) in shape_names() else Path(shape)
    if not path.is_file():
        raise ValueError(f"no configuration {str(shape)!r}: pass a config.json, or one of {', '.join(shape_names())}.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields = fields.get("text_config", fields)
        missing = {"model_type", "num_hidden_layers"} - fields.keys()
    except (json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path} is no model configuration ({error}); pass the config.json of a model.") from error
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}; pass the config.json of a causal LM.")
    return {name: value for name, value in fields.items() if name not in ("architectures", "dtype", "torch_dtype")}
