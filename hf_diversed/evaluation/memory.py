"""The most memory that a block of code needed, as far as the machine tells."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


ALLOCATED = "cuda_allocated"  # by torch on the device, within the block
RESIDENT = "process_resident"  # of the whole process within the block, models included
SINCE_START = "process_resident_since_start"  # where the kernel does not let earlier peaks be forgotten

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass
class PeakMemory:
    """Bytes, and which kind of peak they are; both None until the block has ended, and where neither is known."""

    num_bytes: int | None = None
    kind: str | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak of a block, weights and all else that was there before included."""
    peak = PeakMemory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.num_bytes, peak.kind = torch.cuda.max_memory_allocated(device), ALLOCATED
        return
    forgotten = _forget_resident_peak()
    yield peak
    if forgotten and (found := re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())):
        peak.num_bytes, peak.kind = int(found[1]) * 1024, RESIDENT
    elif (since_start := _peak_since_start()) is not None:
        peak.num_bytes, peak.kind = since_start, SINCE_START


def _forget_resident_peak() -> bool:
    """Linux keeps one peak per process, and resets it on request where the container lets it."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return _STATUS.exists()


def _peak_since_start() -> int | None:
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # or KiB
