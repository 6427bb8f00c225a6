"""Provenance records of results: command, code version, library versions, machine and weights; secrets are removed."""

import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch


_PACKAGES = ("torch", "transformers", "accelerate", "peft", "tokenizers", "safetensors", "huggingface-hub", "numpy")
_BLANK = "***"
_SAMPLED = 16  # values of each tensor in `model_digest`
# Configuration fields that do not affect logits.
_NAMES = re.compile(
    r"^(_name_or_path|transformers_version|architectures|dtype|torch_dtype|use_cache|output_.*|return_.*|.*_token_ids?"
    r"|_attn_implementation.*|id2label|label2id|problem_type|chunk_size_feed_forward|initializer_range)$"
)
_DIGESTS: WeakKeyDictionary[torch.nn.Module, tuple[Any, str]] = WeakKeyDictionary()
# Names of secrets, in lower case with single underscores, and names of text tokens, which are not secret.
_SECRET = re.compile(r"secret|passw(or)?d|passphrase|credential")
_OFTEN_SECRET = re.compile(r"(token|apikey)$|(^|_)(key|auth|authorization|pwd)$")
_OF_TEXT = re.compile(r"(^|_)(bos|eos|pad|unk|sep|cls|mask|per)_token$")
# Names in a text, as "name=", "name:", '"name":' or "--name ", and the values after them.
_NAME = re.compile(r"""(?P<option>--?[\w.-]+)\s+|(?P<name>[\w.-]+)\\?["']?\s*[=:]\s*""")
_VALUE = re.compile(
    r"""(?:(?:Bearer|Basic)\s+)?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^\s,;&)}\]]+)""",
    re.IGNORECASE,
)
_NO_SECRETS = ("none", "null", "true", "false")
_USER = re.compile(r"(?<=\w://)[^\s/]+(?=@)")
_HUB_TOKEN = re.compile(r"hf_[A-Za-z0-9]{16,}")
_PART = r"""[^\s/\\,;:"'=()\[\]{}<>]+"""
_PATH = re.compile(
    rf"file://[^\s,;\"']+"
    rf"|(?<![\w/.])~[\w.-]*(?:/{_PART})+"
    rf"|(?<![\w.~/<-])/{_PART}(?:/{_PART})+"
    rf"|(?<![\w/])(?:\.\./)+(?:{_PART}/)*(?:home|Users|root)/{_PART}(?:/{_PART})*"
    rf"|\b[A-Za-z]:(?:\\+{_PART})+"
)


def provenance(seed: int | None = None, device: torch.device | str | None = None) -> dict:
    """Return a JSON-serializable record of this run: argv (as `publishable`), commit, versions, device, threads, time
    and seed.

    Args:
        seed: the seed of the run.
        device: the device of the models; by default torch's default device.
    """
    return {
        "argv": publishable(sys.argv),
        "git_commit": _git_commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "device": _device_name(torch.get_default_device() if device is None else torch.device(device)),
        "threads": torch.get_num_threads(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
    }


def module_digest(module: torch.nn.Module) -> str:
    """Return the class name and a digest of all weights, equal for equal weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"{type(module).__name__}:{digest.hexdigest()[:16]}"


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
    tensors, adapters = dict[str, torch.Tensor](), list[Any]()
    for prefix, module in model.named_modules():
        found = {**module._parameters, **module._buffers}
        for name in found.keys() - module._non_persistent_buffers_set:
            tensors |= _plain_tensors(f"{prefix}.{name}", found[name])
        if hasattr(module, "merged_adapters"):  # a layer of PEFT
            adapters.append((module.active_adapters, module.disable_adapters, module.merged_adapters, module.scaling))
    # `_version` counts in-place operations. Inference tensors do not have it.
    state = {name: (value.data_ptr(), value.is_inference() or value._version) for name, value in tensors.items()}
    key = state, repr(adapters)
    if (cached := _DIGESTS.get(model)) is None or cached[0] != key:
        cached = _DIGESTS[model] = key, f"{type(model).__name__}:{_digest_of(model, tensors, repr(adapters))}"
    return cached[1]


def _plain_tensors(name: str, value: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return a tensor by name, or the inner tensors of a tensor subclass, such as torchao's quantized tensors."""
    if value is None:
        return {}
    if not hasattr(value, "__tensor_flatten__"):
        return {name: value}
    return {f"{name}.{part}": getattr(value, part) for part in value.__tensor_flatten__()[0]}


def _digest_of(model: Any, tensors: Mapping[str, torch.Tensor], adapters: str) -> str:
    digest = hashlib.sha256(json.dumps([_computing(model.config.to_dict()), adapters], default=str).encode())
    samples = []
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        if value.device.type != "meta" and value.numel():
            count = min(value.numel(), _SAMPLED)
            places = torch.arange(count, device=value.device) * (value.numel() - 1) // max(count - 1, 1)
            samples.append(value.detach().reshape(-1)[places].view(torch.uint8))
    if samples:  # a single transfer
        digest.update(torch.cat([sample.to(samples[0].device) for sample in samples]).cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _computing(config: Any) -> Any:
    """Return the fields of a configuration that may affect logits, sorted by name."""
    if not isinstance(config, Mapping):
        return config
    kept = {str(name): _computing(value) for name, value in config.items() if not _NAMES.search(str(name))}
    return dict(sorted(kept.items()))


def publishable(value: Any) -> Any:
    """Return a JSON value without private data.

    Absolute paths, and relative paths through a home folder, are shortened to the file name. Secrets are blanked: the
    values of options and keys with a secret's name, credentials in URLs, and Hub tokens. Hub ids, other relative
    paths and numbers are kept.
    """
    if isinstance(value, Mapping):
        return {
            publishable(key): _BLANK if _is_secret(str(key), item) else publishable(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            _BLANK if _is_secret_option(option, item) else publishable(item)
            for option, item in zip([None, *value], value)
        ]
    if isinstance(value, Enum):
        return publishable(value.value)
    return _publishable_text(value) if isinstance(value, str) else value


def _is_secret(name: str, value: Any) -> bool:
    """Return whether a value is secret, by its name."""
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
    if _SECRET.search(words):
        found = "/" not in name  # a Hub id or path may contain such a word
    else:
        found = (
            bool(_OFTEN_SECRET.search(words)) and not _OF_TEXT.search(words) and not isinstance(value, (int, float))
        )
    return found and str(value).lower() not in _NO_SECRETS


def _is_secret_option(option: Any, item: Any) -> bool:
    """Return whether an argument is the secret value of the preceding option."""
    if not isinstance(option, str) or not option.startswith("-") or str(item).startswith("--"):
        return False
    return option == "-t" or _is_secret(option, item)


def _publishable_text(text: str) -> str:
    name, equals, value = text.partition("=")
    if equals and (name.startswith("-") or name.isupper()) and _is_secret(name, value):
        return f"{name}={_BLANK}"  # even if it contains spaces or commas
    if text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            return text if (shown := publishable(found)) == found else json.dumps(shown)
    text = _HUB_TOKEN.sub(_BLANK, _USER.sub(_BLANK, _without_named_secrets(text)))
    option, equals, value = text.rpartition("=")
    if Path(value).is_absolute():
        text = f"{option}{equals}{Path(value).name}"
    return _PATH.sub(lambda match: re.split(r"[/\\]+", match[0].rstrip("/"))[-1], text)


def _without_named_secrets(text: str) -> str:
    parts, end = [], 0
    for match in _NAME.finditer(text):
        value = _VALUE.match(text, match.end())
        name = match["option"] or match["name"]
        if value is None or match.start() < end or not _is_secret(name, value[0]):
            continue
        if match["option"] and value[0].startswith("--"):
            continue
        quote = value[0][0] if value[0][0] in "\"'" else ""
        parts += [text[end : match.end()], quote, _BLANK, quote]
        end = value.end()
    return "".join(parts) + text[end:]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"


def _git_commit() -> str | None:
    """Return the commit of this package's checkout, with "-dirty" if files differ; None outside a checkout."""
    here = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
