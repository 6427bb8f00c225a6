"""Memory bandwidth of the machine, and the bytes that a round must read."""

import torch
from transformers import PreTrainedModel

from benchmarks.rounds.timing import Stopwatch


def copy_bandwidth(device: torch.device) -> float:
    """Return the bytes per second (read and written) of a large copy, the best of several."""
    source = torch.ones(2**28, dtype=torch.uint8, device=device)
    destination = torch.empty_like(source)
    watch = Stopwatch(device)
    marks = [watch.mark()]
    for _ in range(6):
        destination.copy_(source)
        marks.append(watch.mark())
    best = min(watch.milliseconds(marks)[1:])  # the first copy includes page faults
    return 2 * len(source) / (best / 1e3)


def weight_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights that one forward reads: all except an untied input embedding."""
    embedding = model.get_input_embeddings().weight
    tied = embedding is model.get_output_embeddings().weight
    parameters = [p for p in model.parameters() if tied or p is not embedding]
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)
