"""Download and validation of a head's two files.

Pickles are not read, code of a repository is not executed, and files larger than a head's are not downloaded.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
)
from safetensors import SafetensorError, safe_open


CONFIG, WEIGHTS = "config.json", "model.safetensors"
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
LARGEST_CONFIG, LARGEST_WEIGHTS = 2**20, 2**30  # bytes
_BYTES_PER_NUMBER, _LEEWAY = 4, 4  # float32; allowed factor between file size and expected size
_LARGEST_HEADER = 2**16  # bytes; generous limit for the safetensors header of a few tensors
_FLOATS = ("F16", "BF16", "F32", "F64")

Shapes = Mapping[str, tuple[int, ...]]


def find_files(name: str | Path, files: tuple[str, ...], **hub: Any) -> Path:
    """Return a folder that contains the existing ones of `files`: a local folder, or a snapshot in the Hub cache.

    All files of a snapshot are from one commit of the repository.

    Args:
        name: folder or Hub id. hub: any of `HUB_ARGUMENTS`.

    Raises:
        OSError: if the repository cannot be read, with the reason and a remedy.
    """
    if os.path.isdir(name):  # unlike Path, False for ""
        return Path(name)
    try:
        return Path(snapshot_download(str(name), allow_patterns=list(files), **hub))
    except Exception as error:
        raise OSError(_explain(str(name), hub, error)) from error


def pin(name: str | Path, **hub: Any) -> dict[str, Any]:
    """Return `hub` with its revision resolved, so that all files are from one commit. Raises OSError."""
    _check_name(name)
    if os.path.isdir(name):
        return hub
    where = {key: hub[key] for key in ("cache_dir", "local_files_only", "revision", "token") if key in hub}
    try:
        return hub | {"revision": HfApi().resolve_revision(str(name), **where).resolved}
    except Exception as error:
        raise OSError(_explain(str(name), hub, error)) from error


def read_config(name: str | Path, subfolder: str, model_type: str, **hub: Any) -> dict[str, Any]:
    """Read config.json and check its `model_type`.

    Args:
        name: folder or Hub id. subfolder: folder of the file within it. hub: return value of `pin`.

    Raises:
        OSError: if it cannot be downloaded, is too large or damaged, or has another `model_type`.
    """
    path = _find(name, CONFIG, subfolder, (0, LARGEST_CONFIG), hub)
    if path.stat().st_size > LARGEST_CONFIG:
        raise OSError(_not_the_size(name, CONFIG, path.stat().st_size, (0, LARGEST_CONFIG)))
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{CONFIG} of {name} is not valid JSON, or is nested too deeply: {error}") from error
    actual_type = entries.get("model_type") if isinstance(entries, dict) else None
    if actual_type != model_type:
        raise OSError(
            f"{name} is not a head: the model_type in its {CONFIG} must be {model_type!r}, got {actual_type!r:.200}."
        )
    return entries


def read_weights(name: str | Path, subfolder: str, expected: Shapes, **hub: Any) -> dict[str, torch.Tensor]:
    """Read the weights to the CPU and check that they are complete and match the parameters.

    Args:
        name: folder or Hub id. subfolder: folder of the file within it. hub: return value of `pin`.
        expected: shapes from the configuration. A file is not downloaded if its size differs too much from them.

    Raises:
        OSError: if they cannot be downloaded, are damaged, or do not match `expected`.
    """
    count = sum(math.prod(shape) for shape in expected.values())
    most = min(count * _BYTES_PER_NUMBER * _LEEWAY + _LARGEST_HEADER, LARGEST_WEIGHTS)
    path = _find(name, WEIGHTS, subfolder, (count * _BYTES_PER_NUMBER // _LEEWAY, most), hub)
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 not a dict
            shapes = {key: tuple(part.get_shape()) for key, part in slices.items()}
            wrong_types = {key: part.get_dtype() for key, part in slices.items() if part.get_dtype() not in _FLOATS}
            is_valid = shapes == dict(expected) and not wrong_types
            # Copies, since the file may be overwritten while the head is in use.
            weights = {key: file.get_tensor(key).clone() for key in shapes} if is_valid else {}
    except SafetensorError as error:
        raise OSError(
            f"{WEIGHTS} of {name} is damaged or truncated ({error}). Download a head of the Hub again with "
            "from_pretrained(..., force_download=True)."
        ) from error
    differences = [
        f"{key} is {shapes.get(key, 'missing')}, must be {expected.get(key, 'left out')}"
        for key in sorted(shapes.keys() | expected.keys())
        if shapes.get(key) != expected.get(key)
    ]
    differences += [
        f"{key} is of type {kind}, must be one of {', '.join(_FLOATS)}" for key, kind in wrong_types.items()
    ]
    if differences:
        raise OSError(f"{WEIGHTS} of {name} does not fit its {CONFIG}: {'; '.join(differences)}.")
    return weights


def _find(name: str | Path, file: str, subfolder: str, sizes: tuple[int, int], hub: Mapping[str, Any]) -> Path:
    """Return the path of a file, local or cached. Downloads it only if its size in bytes is within `sizes`."""
    if os.path.isdir(name):
        path = Path(name) / subfolder / file
        if not path.is_file():
            raise OSError(_missing(name, file))
        return path
    try:
        remote = hf_hub_download(str(name), file, subfolder=subfolder, dry_run=True, **hub)
        if remote.is_cached or sizes[0] <= remote.file_size <= sizes[1]:
            return Path(hf_hub_download(str(name), file, subfolder=subfolder, **hub))
    except Exception as error:
        missing = isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError)
        raise OSError(_missing(name, file) if missing else _explain(str(name), hub, error)) from error
    raise OSError(f"{_not_the_size(name, file, remote.file_size, sizes)} It was not downloaded.")


def _check_name(name: Any) -> None:
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(
            f"a head must be given as a folder or an id of the Hub, got {name!r:.200} ({type(name).__name__})."
        )


def _missing(name: str | Path, file: str) -> str:
    hint = " Weights in other formats are not read, as a pickle can execute code." if file == WEIGHTS else ""
    return f"{name} is not a head: there is no file named {file}.{hint}"


def _not_the_size(name: str | Path, file: str, size: int, sizes: tuple[int, int]) -> str:
    return f"{name} is not a head: its {file} has {size:,} bytes, expected {sizes[0]:,} to {sizes[1]:,}."


def _explain(name: str, hub: Mapping[str, Any], error: Exception) -> str:
    """Return a message with the cause and a remedy. GatedRepoError is a subclass of RepositoryNotFoundError."""
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, HFValidationError):
        return f"{name!r} is neither a folder nor an id of the Hub, which has the form org/name."
    if isinstance(error, GatedRepoError):
        return f"{name} is gated: request access at {page}, then pass token= or log in with `hf auth login`."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{name} is not a folder, and {page} does not exist or is private: check the name; for a private head "
            "pass token= or log in with `hf auth login`."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name} has no revision {hub.get('revision')!r}: {page}/commits lists the existing ones."
    if isinstance(error, (LocalEntryNotFoundError, RevisionResolutionError)):
        reason = error.__cause__ or "downloads are disabled by local_files_only or HF_HUB_OFFLINE"
        return f"{name} is not in the cache and was not downloaded from {page} ({reason})."
    return f"{name} could not be downloaded from {page}: {type(error).__name__}: {error}"
