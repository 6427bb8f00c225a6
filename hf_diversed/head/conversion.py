"""Conversion of heads of the authors' code (github.com/comeusr/diversed) to `DiversedHead`.

Such a head is `nn.Linear(Dq + Dp, 2)` on the last hidden states of draft and target model, in this order, followed by
a softmax. The second probability is the weight on the target: the sigmoid of the difference of the two logits.
"""

import json
import os
import pickle
from pathlib import Path

import torch

from hf_diversed.head.configuration_diversed import DiversedHeadConfig
from hf_diversed.head.modeling_diversed import DiversedHead


WEIGHTS_NAME, CONFIG_NAME = "ensemble_head.bin", "ensemble_config.json"
_WEIGHT, _BIAS = "summary.weight", "summary.bias"
_ARCHITECTURE = {"head_type": "linear", "features": "hidden", "token_features": False}
# Entries of `ensemble_config.json`, and their names in `DiversedHeadConfig`.
_CONFIG_KEYS = {
    "target_hidden_size": "target_hidden_size",
    "draft_hidden_size": "draft_hidden_size",
    "target_model_path": "base_model_name_or_path",
    "draft_model_path": "assistant_model_name_or_path",
}


def convert_head(
    path: str | os.PathLike, target_hidden_size: int | None = None, draft_hidden_size: int | None = None, **config
) -> DiversedHead:
    """Load a head of the authors' code.

    Args:
        path: `ensemble_head.bin`, or its folder. An `ensemble_config.json` in the same folder is read as well; the
            arguments here take precedence over it.
        target_hidden_size, draft_hidden_size: at least one is needed here or in `ensemble_config.json`, because the
            weights determine only their sum.
        config: other fields of `DiversedHeadConfig`, except those of the architecture, which is fixed.

    Returns:
        A float32 head on the CPU, in eval mode, for hidden states without normalisation (`normalize=False`).

    Raises:
        ValueError: if the file is not such a head, contains anything but tensors, or does not match the sizes.
        FileNotFoundError: if the file does not exist.

    Example:
        ```python
        convert_head("ensemble_head.bin", target_hidden_size=4096).save_pretrained("head")
        ```
    """
    path = Path(path)
    path = path / WEIGHTS_NAME if path.is_dir() else path
    weight, bias = _read_weights(path)
    fields = _read_config(path.with_name(CONFIG_NAME))
    arguments = {"target_hidden_size": target_hidden_size, "draft_hidden_size": draft_hidden_size, **config}
    fields |= {name: value for name, value in arguments.items() if value is not None}
    for name, value in _ARCHITECTURE.items():
        if fields.get(name, value) != value:
            raise ValueError(f"{name} of a converted head must be {value!r}, got {fields[name]!r}; omit it.")
    fields |= _widths(weight.shape[1], fields.get("target_hidden_size"), fields.get("draft_hidden_size"))
    head = DiversedHead(DiversedHeadConfig(**{**fields, "normalize": False})).eval()
    draft_part, target_part = (weight[1] - weight[0]).split(
        [fields["draft_hidden_size"], fields["target_hidden_size"]]
    )
    with torch.no_grad():
        head.out.weight.copy_(torch.cat([target_part, draft_part])[None])
        head.out.bias.copy_((bias[1] - bias[0])[None])
    return head


def _read_weights(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight `[2, Dq + Dp]` and bias `[2]`, float32."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; pass the authors' {WEIGHTS_NAME} or the folder it is in.")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path} is damaged or contains objects other than tensors. It was not loaded, as a pickle can execute "
            f"code. Save the head's state_dict as {WEIGHTS_NAME} again."
        ) from error
    tensors = tensors if isinstance(tensors, dict) else {type(tensors).__name__: tensors}
    if set(tensors) != {_WEIGHT, _BIAS} or not all(map(torch.is_tensor, tensors.values())):
        names = ", ".join(f"{name} ({type(value).__name__})" for name, value in tensors.items())
        raise ValueError(
            f"{path} must contain the tensors {_WEIGHT} and {_BIAS}, got {names or 'nothing'}; it is not a head of "
            "the authors' code."
        )
    weight, bias = tensors[_WEIGHT], tensors[_BIAS]
    if weight.ndim != 2 or weight.shape[0] != 2 or bias.shape != (2,):
        raise ValueError(
            f"{_WEIGHT} and {_BIAS} must have shapes [2, width] and [2], got {list(weight.shape)} and "
            f"{list(bias.shape)}; only heads with one linear layer can be converted."
        )
    for name, values in ((_WEIGHT, weight), (_BIAS, bias)):
        if not (values.is_floating_point() and values.isfinite().all()):
            raise ValueError(f"{name} in {path} must contain finite floats; correct the file.")
    return weight.float(), bias.float()


def _read_config(path: Path) -> dict:
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}); correct it, or remove it and pass both sizes."
        ) from error
    if not isinstance(entries, dict):
        raise ValueError(f"{path} must contain an object, got {type(entries).__name__}.")
    return {field: entries[key] for key, field in _CONFIG_KEYS.items() if entries.get(key) is not None}


def _widths(width: int, target: int | None, draft: int | None) -> dict[str, int]:
    """Return both hidden sizes, given at least one and their sum `width`. Raises ValueError."""
    if target is None and draft is None:
        raise ValueError(
            f"the head's width, {width}, is the sum of both hidden sizes: pass target_hidden_size or "
            f"draft_hidden_size, or put {CONFIG_NAME} in the same folder."
        )
    for name, size in (("target_hidden_size", target), ("draft_hidden_size", draft)):
        if size is not None and type(size) is not int:
            raise ValueError(f"{name} must be an integer, got {size!r:.200}.")
    target = width - draft if target is None else target  # type: ignore[operator]
    draft = width - target if draft is None else draft
    if min(target, draft) < 1 or target + draft != width:
        raise ValueError(
            f"target_hidden_size and draft_hidden_size must be at least 1 and add up to {width}, got {target} and "
            f"{draft}; name the pair that the head was trained for."
        )
    return {"target_hidden_size": target, "draft_hidden_size": draft}
