"""The target model's last hidden states at its completion tokens, computed once and stored in a file.

The output embedding maps them to logits, so distillation needs no forward passes of the target in later epochs.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from hf_diversed import _compat
from hf_diversed.provenance import model_digest
from hf_diversed.running.decode import with_progress
from hf_diversed.running.files import write_json, writing
from hf_diversed.training.completions import IGNORED, STATES, collate, completion_logits


@torch.no_grad()
def with_target_states(
    examples: Sequence[dict], target: PreTrainedModel, folder: Path, batch_size: int, shown: bool | None = None
) -> list[dict]:
    """Return the examples with "target_states", `[T, D]` for T completion tokens, in the target's dtype.

    The states are stored in `target_states.bin`, which is appended to after each batch and memory-mapped.

    Args:
        examples: examples in the format of `collate`.
        target: the target model.
        folder: folder of the file.
        batch_size: examples per forward pass of the target.
        shown: whether to show a progress bar; None shows one on a terminal.

    Raises:
        ValueError: if the logits of the target are not those of its output embedding (logit soft-capping), or the
            file belongs to another target or other completions.
        OSError: if the disk has too little space, or the file cannot be written.
    """
    lengths = [sum(label != IGNORED for label in example["labels"][1:]) for example in examples]
    order = sorted(range(len(examples)), key=lambda number: len(examples[number]["input_ids"]))
    width, dtype = _compat.hidden_width(target), target.dtype
    path = folder / f"{STATES}.bin"
    settings = {
        "target": _compat.public_name(target),
        "target_weights": model_digest(target),
        "dtype": str(dtype),
        "examples": hashlib.sha256(json.dumps([example["input_ids"] for example in examples]).encode()).hexdigest(),
        "tokens": sum(lengths),
    }
    _check_output(target, examples[order[0]])
    bounds = [0]
    for number in order:
        bounds.append(bounds[-1] + lengths[number] * width * dtype.itemsize)
    done = _drop_torn_states(path, settings, bounds)
    starts = range(done, len(order), batch_size)
    for start in with_progress(starts, "hidden states of the target", "batch", shown):
        states = _read(target, [examples[number] for number in order[start : start + batch_size]])
        with writing(path), path.open("ab") as file:
            file.write(states.to("cpu", dtype).contiguous().view(torch.uint8).numpy().tobytes())
    kept = torch.from_file(str(path), size=sum(lengths) * width, dtype=dtype).view(-1, width)
    parts = dict(zip(order, kept.split([lengths[number] for number in order])))
    return [{**example, STATES: parts[number]} for number, example in enumerate(examples)]


def _drop_torn_states(path: Path, settings: dict, bounds: list[int]) -> int:
    """Truncate the file after its last complete example and return the number of complete examples."""
    about = path.with_suffix(".json")
    stored = json.loads(about.read_text()) if about.exists() else settings
    if changed := sorted(name for name in settings if stored.get(name) != settings[name]):
        raise ValueError(
            f"{path.name} contains hidden states of another target or of other completions ({', '.join(changed)}); "
            f"use another output_dir, or remove it and {about.name} to compute them again."
        )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            size = file.tell()
            done = max(number for number, bound in enumerate(bounds) if bound <= size)
            file.truncate(bounds[done])
        needed, free = bounds[-1] - bounds[done], shutil.disk_usage(path.parent).free
        if needed > free:
            raise OSError(f"it would grow by {needed / 2**30:.1f} GiB")
    write_json(about, settings)
    return done


def _read(target: PreTrainedModel, examples: list[dict]) -> torch.Tensor:
    """Return the hidden states `[N, D]` of a batch's completion tokens: the inputs of the output embedding."""
    handle = target.get_output_embeddings().register_forward_hook(lambda _, inputs, __: inputs[0])
    try:
        return completion_logits(target, collate(examples), target)
    finally:
        handle.remove()


def _check_output(target: PreTrainedModel, example: dict) -> None:
    logits = completion_logits(target, collate([example]), target).float()
    projected = target.get_output_embeddings()(_read(target, [example])).float()
    if not torch.allclose(projected, logits, rtol=1e-2, atol=1e-2 * logits.std().item()):
        raise ValueError(
            "keep_target_states=True needs a target whose logits are those of its output embedding, but "
            f"{type(target).__name__} caps them; set it to False."
        )
