"""Provenance records of results: code version, library versions, machine, and digests of weights and data."""

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch


_PACKAGES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "huggingface-hub", "numpy", "torchao")
_SAMPLED = 16  # values of each tensor in `weights_digest`
_DIGESTS: WeakKeyDictionary[torch.nn.Module, tuple[Any, str | None]] = WeakKeyDictionary()  # by first submodule
_FOLDERS = re.compile(r"(?:^|(?<=[:=,\s]))~?/(?:[^/\s:=,]+/)*(?=[^/\s])")  # of an absolute path


def provenance(seed: int | None = None, device: torch.device | str | None = None) -> dict:
    """Return a JSON-serializable record of this run: commit, versions, device of the models (by default torch's),
    threads, time and seed."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # peft is optional
            versions[name] = version(name)
    return {
        "git_commit": _git_commit(),
        "versions": versions,
        "device": _device_name(torch.get_default_device() if device is None else torch.device(device)),
        "threads": torch.get_num_threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def data_digest(value: Any) -> str:
    """Return a digest of prompts and records: 16 hexadecimal digits of the SHA-256 of their JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def module_digest(module: torch.nn.Module) -> str:
    """Return the class name and a digest of all weights, equal for equal weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"{type(module).__name__}:{digest.hexdigest()[:16]}"


def weights_digest(model: torch.nn.Module) -> str | None:
    """Return the dtype, the class name and a digest of a sample of the weights: "float32 LlamaForCausalLM:0123...".

    It covers the name, shape, dtype and up to 16 evenly spaced values of each parameter and persistent buffer, but not
    the configuration, whose fields differ between versions of transformers. None if tensors are on the meta device, as
    offloaded ones are.
    """
    tensors = {
        name: part
        for prefix, module in model.named_modules()
        for own, tensor in {**module._parameters, **module._buffers}.items()
        if own not in module._non_persistent_buffers_set
        for name, part in _plain_tensors(f"{prefix}.{own}", tensor).items()
    }
    if not tensors or any(tensor.device.type == "meta" for tensor in tensors.values()):
        return None
    digest, samples = hashlib.sha256(), []
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.numel():
            count = min(value.numel(), _SAMPLED)
            indices = torch.arange(count, device=value.device) * (value.numel() - 1) // max(count - 1, 1)
            samples.append(value.detach().reshape(-1)[indices].view(torch.uint8))
    if samples:  # a single transfer
        digest.update(torch.cat([sample.to(samples[0].device) for sample in samples]).cpu().numpy().tobytes())
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"{dtype} {type(model).__name__}:{digest.hexdigest()[:16]}"


def cached_weights_digest(model: torch.nn.Module) -> str | None:
    """Return `weights_digest`, computed once per model and its shallow copies, until its first parameter changes."""
    first = next(model.parameters())
    key = first.data_ptr(), first.is_inference() or first._version
    submodule = next(model.children(), model)
    if (cached := _DIGESTS.get(submodule)) is None or cached[0] != key:
        cached = _DIGESTS[submodule] = key, weights_digest(model)
    return cached[1]


def _plain_tensors(name: str, value: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return a tensor by name, or the inner tensors of a tensor subclass, such as torchao's quantized tensors."""
    if value is None:
        return {}
    if not hasattr(value, "__tensor_flatten__"):
        return {name: value}
    return {f"{name}.{part}": getattr(value, part) for part in value.__tensor_flatten__()[0]}


def publishable(value: Any) -> Any:
    """Return a JSON value in which absolute paths are shortened to their last part."""
    if isinstance(value, Mapping):
        return {publishable(key): publishable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [publishable(item) for item in value]
    if isinstance(value, Enum):
        return publishable(value.value)
    if isinstance(value, Path):
        return publishable(str(value))
    if not isinstance(value, str):
        return value
    if value.startswith(("/", "~/")):
        return Path(value).name
    return _FOLDERS.sub("", value)


def _device_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the CPU from /proc/cpuinfo, else the architecture."""
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    cpu = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return f"{device.type} ({cpu if device.type == 'cpu' else platform.machine()})"


def _git_commit() -> str | None:
    """Return the commit of this package's checkout, with "-dirty" if files differ; None if git does not track this
    file, as in an installed package."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here.parent, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None
