"""Provenance records of results: command, code version, library versions, machine and weights."""

import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch


_PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "tokenizers",
    "safetensors",
    "huggingface-hub",
    "numpy",
    "torchao",
)
_BLANK = "***"
_SAMPLED = 16  # values of each tensor in `model_digest`
# Configuration fields that do not affect logits.
_NAMES = re.compile(
    r"^(_name_or_path|transformers_version|architectures|dtype|torch_dtype|use_cache|output_.*|return_.*|.*_token_ids?"
    r"|_attn_implementation.*|id2label|label2id|problem_type|chunk_size_feed_forward|initializer_range)$"
)
_DIGESTS: WeakKeyDictionary[torch.nn.Module, tuple[Any, str]] = WeakKeyDictionary()
_WEIGHTS: WeakKeyDictionary[torch.nn.Module, tuple[Any, str | None]] = WeakKeyDictionary()  # by first submodule
# Options and settings whose text is recorded. For others only flags and numbers are, because text may be private.
_TEXT = """
backend baseline batch_sizes choices choose config data data_file device divergence draft draft_config dtype engine
eval_data_file eval_split eval_strategy evaluation features folder format frontier head head_features head_type heads
labels lora_target_modules lr_scheduler_type markdown method methods metric_for_best_model mode model objective optim
others output output_dir plot report report_to resume_from_checkpoint reward_funcs save_strategy schedules
shots_file split study target target_config task tasks text verifier verifiers attn_implementation
experts_implementation revision torch_dtype
"""
_RECORDED = frozenset(_TEXT.split())
_PLAIN = re.compile(r"[+-]?[\d.][\d.,e+-]*|true|false|none", re.IGNORECASE)
_HUB_TOKEN = re.compile(r"hf_(?:[A-Za-z0-9]{16,}|(?:oauth|jwt)_[\w.-]{16,})")
_PART = r"""[^\s/\\,;:"'=()\[\]{}<>]+"""
_PATH = re.compile(
    rf"file://[^\s,;\"']+"
    rf"|(?<![\w/.])~[\w.-]*(?:/{_PART})+"
    rf"|(?<![\w.~/<-])/{_PART}(?:/{_PART})+"
    rf"|(?<![\w./])(?:\./)*(?:\.\./)+(?:{_PART}/)*(?:home|Users|root)/{_PART}(?:/{_PART})*"
    rf"|\b[A-Za-z]:(?:\\+{_PART})+"
)


def provenance(seed: int | None = None, device: torch.device | str | None = None) -> dict:
    """Return a JSON-serializable record of this run: argv (as `recorded`), commit, versions, device of the models (by
    default torch's), threads, time and seed."""
    return {
        "argv": recorded(sys.argv),
        "git_commit": _git_commit(),
        "versions": _versions(),
        "device": _device_name(torch.get_default_device() if device is None else torch.device(device)),
        "threads": torch.get_num_threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages among `_PACKAGES`."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # peft is optional
            versions[name] = version(name)
    return versions


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

    It covers the name, shape and up to 16 evenly spaced values of each parameter and persistent buffer. Unlike
    `model_digest`, it does not depend on the configuration, whose fields differ between versions of transformers.
    None if tensors are on the meta device, as offloaded ones are.
    """
    tensors = _tensors_of(model)
    if not tensors or any(tensor.device.type == "meta" for tensor in tensors.values()):
        return None
    digest = hashlib.sha256()
    _add_weights(digest, tensors)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return f"{dtype} {type(model).__name__}:{digest.hexdigest()[:16]}"


def cached_weights_digest(model: torch.nn.Module) -> str | None:
    """Return `weights_digest`, computed once per model and its shallow copies, until its first parameter changes."""
    first = next(model.parameters())
    key = first.data_ptr(), first.is_inference() or first._version
    submodule = next(model.children(), model)
    if (cached := _WEIGHTS.get(submodule)) is None or cached[0] != key:
        cached = _WEIGHTS[submodule] = key, weights_digest(model)
    return cached[1]


def model_digest(model: torch.nn.Module) -> str:
    """Return a digest of a model's configuration and a sample of its weights, cheap enough for every call.

    It covers the class, the configuration without token ids and names, the active PEFT adapters, and the name, shape,
    dtype and up to 16 evenly spaced values of each parameter and persistent buffer. Changes to other values are not
    detected, nor changes to packed weights of `torch.ao` or offloaded tensors.

    The digest is cached per model and computed again after a tensor was replaced or modified in place. Changes
    through `.data`, or of the configuration alone, do not invalidate the cache.

    Returns:
        The class name and 16 hexadecimal digits, equal on all devices.
    """
    tensors = _tensors_of(model)
    adapters = [
        (module.active_adapters, module.disable_adapters, module.merged_adapters, module.scaling)
        for module in model.modules()
        if hasattr(module, "merged_adapters")  # a layer of PEFT
    ]
    # `_version` counts in-place operations. Inference tensors do not have it.
    state = {name: (value.data_ptr(), value.is_inference() or value._version) for name, value in tensors.items()}
    key = state, repr(adapters)
    if (cached := _DIGESTS.get(model)) is None or cached[0] != key:
        cached = _DIGESTS[model] = key, f"{type(model).__name__}:{digest_of(model, tensors, repr(adapters))}"
    return cached[1]


def _tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers of a model by name."""
    return {
        name: part
        for prefix, module in model.named_modules()
        for own, tensor in {**module._parameters, **module._buffers}.items()
        if own not in module._non_persistent_buffers_set
        for name, part in _plain_tensors(f"{prefix}.{own}", tensor).items()
    }


def _plain_tensors(name: str, value: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return a tensor by name, or the inner tensors of a tensor subclass, such as torchao's quantized tensors."""
    if value is None:
        return {}
    if not hasattr(value, "__tensor_flatten__"):
        return {name: value}
    return {f"{name}.{part}": getattr(value, part) for part in value.__tensor_flatten__()[0]}


def digest_of(model: Any, tensors: Mapping[str, torch.Tensor], adapters: str) -> str:
    digest = hashlib.sha256(json.dumps([_computing(model.config.to_dict()), adapters], default=str).encode())
    _add_weights(digest, tensors)
    return digest.hexdigest()[:16]


def _add_weights(digest: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Update a hash with the names, shapes, dtypes and a sample of the values of tensors."""
    samples = []
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.device.type != "meta" and value.numel():
            count = min(value.numel(), _SAMPLED)
            indices = torch.arange(count, device=value.device) * (value.numel() - 1) // max(count - 1, 1)
            samples.append(value.detach().reshape(-1)[indices].view(torch.uint8))
    if samples:  # a single transfer
        digest.update(torch.cat([sample.to(samples[0].device) for sample in samples]).cpu().numpy().tobytes())


def _computing(config: Any) -> Any:
    """Return the fields of a configuration that may affect logits, sorted by name."""
    if not isinstance(config, Mapping):
        return config
    kept = {str(name): _computing(value) for name, value in config.items() if not _NAMES.search(str(name))}
    return dict(sorted(kept.items()))


def recorded(argv: Sequence[str]) -> list[str]:
    """Return a command line as `publishable`, without the text of options that are not in `_RECORDED`."""
    words, is_recorded = [], True
    for word in argv:
        if not word.startswith("-") or _PLAIN.fullmatch(word):
            if is_recorded or _PLAIN.fullmatch(word):
                words.append(publishable(word))
            continue
        name, equals, value = word.partition("=")
        is_recorded = name.strip("-").replace("-", "_") in _RECORDED
        words.append(f"{name}={publishable(value)}" if equals and (is_recorded or _PLAIN.fullmatch(value)) else name)
    return words


def recorded_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as `publishable`. Text in nested settings, such as `model_init_kwargs`, is kept only under names
    in `_RECORDED`."""
    filtered = {
        name: {
            key: item
            for key, item in value.items()
            if key in _RECORDED or item is None or isinstance(item, (bool, int, float))
        }
        if isinstance(value, Mapping)
        else value
        for name, value in settings.items()
    }
    result: dict[str, Any] = publishable(filtered)
    return result


def publishable(value: Any) -> Any:
    """Return a JSON value without paths of this machine and without Hub tokens.

    Absolute paths, and relative paths through a home folder, are shortened to the file name. Hub ids, other relative
    paths and numbers are kept.
    """
    if isinstance(value, Mapping):
        return {publishable(key): publishable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [publishable(item) for item in value]
    if isinstance(value, Enum):
        return publishable(value.value)
    if not isinstance(value, str):
        return value
    text = _HUB_TOKEN.sub(_BLANK, value)
    option, equals, last = text.rpartition("=")
    if Path(last).is_absolute():
        text = f"{option}{equals}{Path(last).name}"
    return _PATH.sub(lambda match: re.split(r"[/\\]+", match[0].rstrip("/"))[-1], text)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({_cpu_name() if device.type == 'cpu' else platform.machine()})"


def _cpu_name() -> str:
    """Return the CPU's model name from /proc/cpuinfo, else the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


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
