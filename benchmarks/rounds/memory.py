"""Peak memory of a block of code, and how much the block added."""

import ctypes
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


ALLOCATED = "cuda_allocated"  # by torch on the device, within the block
RESIDENT = "process_resident"  # of the whole process within the block, models included
SINCE_START = "process_resident_since_start"  # if the kernel cannot reset the peak

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


@dataclass
class PeakMemory:
    """Bytes and kind of a peak; None until the block has ended, and if unknown.

    `num_added` is the part that the block added: in torch's allocator on a GPU, in pages of the process on a CPU (call
    `give_back_free_pages` before). None if only the peak since start is known.
    """

    num_bytes: int | None = None
    kind: str | None = None
    num_added: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak of a block, including everything allocated before it."""
    peak = PeakMemory()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.num_bytes, peak.kind = torch.cuda.max_memory_allocated(device), ALLOCATED
        peak.num_added = peak.num_bytes - before
        return
    forgotten = _forget_resident_peak()
    before = _status("VmRSS") if forgotten else 0
    yield peak
    if forgotten:
        peak.num_bytes, peak.kind = _status("VmHWM"), RESIDENT
        peak.num_added = max(peak.num_bytes - before, 0)
    elif (since_start := _peak_since_start()) is not None:
        peak.num_bytes, peak.kind = since_start, SINCE_START


def give_back_free_pages() -> None:
    """Return free memory of the C library to the system, so that a block's additions are visible."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc only
    if trim is not None:
        trim(0)


def _status(entry: str) -> int:
    """Return an entry of /proc/self/status in bytes."""
    found = re.search(rf"{entry}:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


def _forget_resident_peak() -> bool:
    """Reset the peak of the process; False if the system or the container does not allow it."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return _STATUS.exists()


def _peak_since_start() -> int | None:
    try:
        import resource  # missing on Windows
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)  # or KiB
