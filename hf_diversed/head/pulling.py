"""Where a head's two files come from, and what is wrong with them if they are not a head's. Reads no pickle and runs
no code of a repository."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open


CONFIG, WEIGHTS = "config.json", "model.safetensors"
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "revision", "token")

Shapes = Mapping[str, tuple[int, ...]]


def find_files(name: str | Path, files: tuple[str, ...], subfolder: str = "", **hub: Any) -> Path:
    """Return the folder that holds those of the files which exist: a folder here, or the cached state of a repository.

    All come from one commit of the repository.

    Args:
        name: folder or Hub id. subfolder: where in it the files lie. hub: any of `HUB_ARGUMENTS`.

    Raises:
        OSError: if the repository cannot be read; says why and what to do.
    """
    if os.path.isdir(name):  # unlike Path, which takes "" for the present folder
        return Path(name) / subfolder
    patterns = [f"{subfolder}/{file}" if subfolder else file for file in files]
    try:
        return Path(snapshot_download(str(name), allow_patterns=patterns, **hub)) / subfolder
    except Exception as error:
        raise OSError(_in_words(str(name), hub, error)) from error


def read_config(name: str | Path, folder: Path, model_type: str) -> dict[str, Any]:
    """Read config.json and check that it is of this type of model. Raises OSError."""
    try:
        found = json.loads(_existing(name, folder, CONFIG).read_text())
    except ValueError as error:
        raise OSError(f"{CONFIG} of {name} is no JSON: {error}") from error
    found_type = found.get("model_type") if isinstance(found, dict) else None
    if found_type != model_type:
        raise OSError(
            f"{name} holds no head: the model_type in its {CONFIG} must be {model_type!r}, got {found_type!r}."
        )
    return found


def check_weights(name: str | Path, folder: Path, expected: Shapes) -> None:
    """Check that the weights are whole and that there is one for every parameter. Raises OSError."""
    path = _existing(name, folder, WEIGHTS)
    try:
        with safe_open(path, framework="pt") as file:
            found = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 not a dict
    except SafetensorError as error:
        raise OSError(
            f"{WEIGHTS} of {name} is damaged or cut off ({error}). Get it again: from_pretrained(..., "
            "force_download=True) for a head of the Hub."
        ) from error
    differences = [
        f"{key} is {found.get(key, 'missing')}, must be {expected.get(key, 'left out')}"
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]
    if differences:
        raise OSError(f"{WEIGHTS} of {name} does not fit its {CONFIG}: {'; '.join(differences)}.")


def _existing(name: str | Path, folder: Path, file: str) -> Path:
    if not (folder / file).is_file():
        hint = " Weights in other formats are not read: a pickle could run code." if file == WEIGHTS else ""
        raise OSError(f"{name} holds no head: there is no file named {file}.{hint}")
    return folder / file


def _in_words(name: str, hub: Mapping[str, Any], error: Exception) -> str:
    """What went wrong and what helps; a gated repository is a special case of a missing one to the client."""
    page = f"{constants.ENDPOINT}/{name}"
    if isinstance(error, HFValidationError):
        return f"{name!r} is no folder, and cannot be a head of the Hub either: an id reads org/name."
    if isinstance(error, GatedRepoError):
        return f"{name} is gated: ask for access at {page}, then pass token= or log in with `hf auth login`."
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{name} is no folder, and {page} does not exist or is private: check the name; for a private head pass "
            "token= or log in with `hf auth login`."
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{name} has no revision {hub.get('revision')!r}: see {page}/commits for those it has."
    if isinstance(error, LocalEntryNotFoundError):
        reason = error.__cause__ or "looking it up is switched off: local_files_only or HF_HUB_OFFLINE"
        return f"{name} is not in the cache and was not downloaded from {page} ({reason})."
    return f"{name} could not be downloaded from {page}: {type(error).__name__}: {error}"
