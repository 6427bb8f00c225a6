"""Decode one batch of prompts with one method and measure it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method
from hf_diversed.outputs import SpeculativeStats, TokenRecords


# Counters that are summed over rows and prompts, by their names in `SpeculativeStats`.
COUNTERS = (
    "num_rounds",
    "num_drafted",
    "num_accepted",
    "num_rejected",
    "weight_sum",
    "weight_count",
    "tv_sum",
    "tv_count",
    "bias_sum",
    "bias_count",
    "overshoot_sum",
    "overshoot_count",
)


def measured_call(
    decoder: Decoder, method: Method, prompts: list[list[int]], seed: int, records: bool, **kwargs
) -> tuple[dict[str, list], dict[str, Any]]:
    """Complete a batch of encoded prompts.

    Returns:
        Lists of length B, and the cost of `generate`: `seconds` of wall time, `peak_memory_bytes` and
        `peak_memory_kind` (see `PeakMemory`).
    """
    if records and method.verifier is not None:
        kwargs["output_token_records"] = True
    with peak_memory(decoder.pair.target.device) as peak:
        decoded = decoder(method, prompts, seed, **kwargs)
    cost = {"seconds": decoded.seconds, "peak_memory_bytes": peak.num_bytes, "peak_memory_kind": peak.kind}
    texts = [decoder.text(ids) for ids in decoded.tokens]
    rows: dict[str, list] = {
        "text": texts,
        "tokens": [len(ids) for ids in decoded.tokens],
        "cut_off": [decoder.is_cut_off(ids, text) for ids, text in zip(decoded.tokens, texts)],
    }
    if decoded.stats is not None:
        rows |= _counter_columns(decoded.stats.per_row)
    if decoded.records is not None:
        rows |= _record_columns(decoded.records)
    return rows, cost


def _counter_columns(per_row: list[SpeculativeStats]) -> dict[str, list]:
    columns: dict[str, list[Any]] = {name: [getattr(stats, name) for stats in per_row] for name in COUNTERS}
    ratios = [stats.max_ratio for stats in per_row]
    columns["max_ratio"] = [ratio if 0.0 < ratio < float("inf") else None for ratio in ratios]
    columns["accepted_per_position"] = [list(stats.accepted_per_position) for stats in per_row]
    return columns


def _record_columns(records: TokenRecords) -> dict[str, list]:
    """Return relaxed tokens per row and the largest bias TV(v, p); None for verifiers that are not mixtures."""
    largest = records.bias.nan_to_num(-1.0).max(dim=1).values.tolist()
    return {
        "relaxed": records.relaxed.sum(dim=1).tolist(),
        "max_bias": [None if value < 0 else value for value in largest],
    }


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
