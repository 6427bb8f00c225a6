"""Loading of heads by name, for `diversed_head="org/head-mbpp"` in a call."""

import os
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from hf_diversed.head.modeling_diversed import DiversedHead


_LOCK = Lock()


def load_head(name: str, device: torch.device | str | None = None, **hub: Any) -> DiversedHead:
    """Load a head from a folder or the Hub, with a small cache. A folder is read again once its files change.

    Args:
        name: folder, "org/name" or "org/name@revision". device: None for the CPU.
        hub: options of the download, as in `from_pretrained`.
    """
    # transformers replaces global functions while it loads, and the cached head may be trained later.
    with _LOCK, torch.inference_mode(False):
        if os.path.isdir(name):
            files = (Path(name) / file for file in ("config.json", "model.safetensors"))
            times = tuple(file.stat().st_mtime_ns for file in files if file.is_file())
            return _load(name, None, str(device or "cpu"), times)
        repo_id, _, revision = name.partition("@")
        return _load(repo_id, revision or None, str(device or "cpu"), (), **hub)


@lru_cache(maxsize=8)
def _load(name: str, revision: str | None, device: str, times: tuple[int, ...], **hub: Any) -> DiversedHead:
    return DiversedHead.from_pretrained(name, revision=revision, **hub).to(device).eval()
