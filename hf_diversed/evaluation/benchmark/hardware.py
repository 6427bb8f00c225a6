"""What the machine allows: bandwidth, the bytes a round must read, and the memory a run took."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from hf_diversed.evaluation.benchmark.timing import Stopwatch


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def copy_bandwidth(device: torch.device, num_bytes: int = 2**28, repeats: int = 5) -> float:
    """Bytes per second that a large copy moves (read and written), the best of several: the practical limit."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    watch = Stopwatch(device)
    marks = [watch.mark()]
    for _ in range(repeats + 1):
        destination.copy_(source)
        marks.append(watch.mark())
    best = min(watch.milliseconds(marks)[1:])  # the first one maps the memory
    return 2 * num_bytes / (best / 1e3)


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one forward reads: all but an input embedding of its own, of which it reads few rows."""
    embedding = model.get_input_embeddings().weight
    tied = embedding is model.get_output_embeddings().weight
    parameters = [p for p in model.parameters() if tied or p is not embedding]
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


@dataclass
class PeakMemory:
    """Highest memory in use within a block: of the allocator on CUDA, resident on Linux, None elsewhere."""

    num_bytes: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak of a block, weights and all else that was there before included."""
    peak = PeakMemory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        peak.num_bytes = torch.cuda.max_memory_allocated(device)
        return
    measurable = _reset_resident_peak()
    yield peak
    if measurable and (found := re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())):
        peak.num_bytes = int(found[1]) * 1024


def _reset_resident_peak() -> bool:
    """Linux keeps one peak per process, and resets it on request where the container lets it."""
    try:
        _CLEAR.write_text(_RESET_PEAK)
    except OSError:
        return False
    return _STATUS.exists()
