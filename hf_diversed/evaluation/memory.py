"""Peak memory of a block of code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


ALLOCATED = "cuda_allocated"  # by torch on the device, within the block
SINCE_START = "process_resident_since_start"  # of the whole process, from its start to the end of the block


@dataclass
class PeakMemory:
    """Bytes and the kind of peak; None until the block has ended, and on systems without peak measurement."""

    num_bytes: int | None = None
    kind: str | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak memory of a block, including weights and everything else allocated before it."""
    peak = PeakMemory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.num_bytes, peak.kind = torch.cuda.max_memory_allocated(device), ALLOCATED
        return
    yield peak
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak.num_bytes, peak.kind = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, SINCE_START
