"""The most memory that a call needed, as far as the machine tells."""

import sys

import torch


ALLOCATED = "cuda_allocated"  # by torch on the target's device, during the call
RESIDENT = "process_resident"  # of the whole process since it started, models and earlier calls included


def start_peak(device: torch.device) -> None:
    """Forget earlier peaks, where that is possible."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def read_peak(device: torch.device) -> tuple[int | None, str | None]:
    """Bytes, and which kind of peak they are; (None, None) where neither is known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), ALLOCATED
    try:
        import resource  # not on Windows
    except ImportError:
        return None, None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024), RESIDENT  # KiB, but bytes on macOS
