"""Cached loading of heads by name, so that `diversed_head="org/head-mbpp"` does not read the disk in every call."""

import os
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from hf_diversed.head.modeling_diversed import DiversedHead
from hf_diversed.head.pulling import CONFIG, WEIGHTS


_LOCK = Lock()


def load_head(name: str, device: torch.device | str | None = None, **hub: Any) -> DiversedHead:
    """Load a head from a folder or the Hub, with a small cache.

    The cache key is name, device and `hub`. A folder is read again once the head's files change.

    Args:
        name: folder, "org/name" or "org/name@revision". device: None for the CPU.
        hub: download options as in `from_pretrained`: token, cache_dir, local_files_only, force_download.

    Raises:
        ValueError: for a folder with a revision.
        OSError: as in `from_pretrained`.
    """
    # transformers replaces global functions while it loads, and the cached head may be trained later.
    with _LOCK, torch.inference_mode(False):
        if os.path.isdir(name):  # unlike Path, False for ""
            folder = Path(name)
            stamp = _stamp(folder / CONFIG), _stamp(folder / WEIGHTS)
            return cached_load(str(folder), None, str(device or "cpu"), stamp)
        repo_id, _, revision = name.partition("@")
        if revision and os.path.isdir(repo_id):
            raise ValueError(
                f"{repo_id} is a folder, which has no revisions, got {name!r}; leave out @{revision}, or pass a "
                "strictness as diversed_strictness=."
            )
        return cached_load(repo_id, revision or None, str(device or "cpu"), (), **hub)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return values that change with a file; None for a missing file, which loading reports."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=8)
def cached_load(name: str, revision: str | None, device: str, stamp: tuple, **hub: Any) -> DiversedHead:
    return DiversedHead.from_pretrained(name, revision=revision or "main", **hub).to(device).eval()
