"""Summarise finished calls as one record per method, with bounds clustered by prompt."""

import math
from collections.abc import Sequence

import numpy as np

from hf_diversed.evaluation.calls import COUNTERS
from hf_diversed.evaluation.intervals import Bootstrap, interpolate
from hf_diversed.evaluation.results import Results
from hf_diversed.formatting import LOSSLESS, PLAIN


_SHARED = (
    "temperature",
    "top_k",
    "top_p",
    "num_assistant_tokens",
    "samples_per_prompt",
    "seed",
    "batch_size",
    "split",
)


class MethodTable:
    """One method's rows, and their sums per prompt (`sums[name]`, float64 `[P]`)."""

    def __init__(self, results: Results, label: str):
        entries = [entry for (method, _, _), entry in sorted(results.entries.items()) if method == label]
        self.label = label
        self.static_weight: float | None = entries[0]["static_weight"]
        self.seconds = math.fsum(entry["seconds"] for entry in entries)
        kinds = {entry["peak_memory_kind"] for entry in entries}
        self.peak_kind: str | None = kinds.pop() if len(kinds) == 1 else None  # other kinds are not comparable
        self.peak_bytes = None if self.peak_kind is None else max(entry["peak_memory_bytes"] for entry in entries)
        rows = [entry["rows"] for entry in entries]
        names = [name for name in rows[0] if all(name in each for each in rows)]  # earlier versions had other columns
        self.rows = {name: [value for each in rows for value in each[name]] for name in names}
        prompts, num_prompts = np.array(self.rows["prompt"]), results.header["n"]
        self.sums = {
            name: np.bincount(prompts, np.array(self.rows[name], dtype=np.float64), num_prompts)
            for name in ("score", "tokens", "cut_off", "relaxed", *COUNTERS)
            if name in self.rows
        }
        self.sums["rows"] = np.bincount(prompts, minlength=num_prompts).astype(np.float64)

    def rate(self, numerator: str, *denominators: str) -> float | None:
        """Return the ratio of two totals; None if there is no data."""
        if not {numerator, *denominators} <= self.sums.keys():
            return None
        below = sum(float(self.sums[name].sum()) for name in denominators)
        return float(self.sums[numerator].sum()) / below if below else None

    def accepted_per_position(self) -> list[float] | None:
        """Return the share of rounds in which draft position j was accepted."""
        if "accepted_per_position" not in self.rows:
            return None
        rounds = float(self.sums["num_rounds"].sum())
        counts = self.rows["accepted_per_position"]
        width = max(map(len, counts))
        return [sum(row[j] for row in counts if j < len(row)) / rounds for j in range(width)]

    def largest(self, name: str) -> float | None:
        return max((value for value in self.rows.get(name, []) if value is not None), default=None)


def summarize(results: Results, labels: Sequence[str] | None = None) -> list[dict]:
    """Return one record per method, ready for strict JSON; values that do not exist for a method are None.

    `*_ci` are two-sided 95% bounds over prompts, see `Bootstrap`; those of `quality_drop` from `estimate_difference`.
    `quality_drop` is the `reference` ("target", else "lossless") minus the method on the same prompts.
    `cut_off_rate` is the share of completions that ended at `max_new_tokens`, before EOS or a stop string.
    `prompts_better` and `prompts_worse` are the numbers of prompts with a higher and a lower score than the
    reference. Rates count as in `SpeculativeStats`; `relaxed_share` is per generated token; `mean_bias`, `max_bias`,
    `mean_overshoot` and `max_ratio` cover verified positions; `max_ratio` leaves out completions with an emitted
    token of p = 0. Times are of batched calls, summed over processes. `peak_memory_bytes` is the maximum over calls,
    of kind `peak_memory_kind` (see `PeakMemory`).

    `static_gain` is the quality minus that of the static curve at the same acceptance rate. The curve is piecewise
    linear through (acceptance rate, quality) of all methods with a constant weight, including lossless as weight 1;
    it is recomputed in every replicate. Replicates whose acceptance rate lies beyond the curve's ends are left out:
    the bounds are None if their share exceeds `MAX_OUTSIDE`, the gain if the method itself lies there. Both are None
    for the curve's own methods, for "target", and with fewer than two points.

    Args:
        labels: the methods to include; None for all.

    Raises:
        ValueError: if calls of these methods are missing.
    """
    labels = results.labels() if labels is None else labels
    missing = results.missing(labels)
    if missing or not labels:
        first = f", the first of them (method, batch, sample) = {missing[0]}" if missing else ""
        raise ValueError(f"{len(missing)} calls are missing{first}; run `evaluate` until all ranks are done.")
    bootstrap = Bootstrap(results.header["n"], seed=results.header["settings"]["seed"])
    tables = {label: MethodTable(results, label) for label in labels}
    reference = next((tables[label] for label in (PLAIN, LOSSLESS) if label in tables), None)
    return [
        {
            "method": label,
            "task": results.header["task"],
            "metric": results.header["metric"],
            "n": results.header["n"],
            "max_new_tokens": results.header["max_new_tokens"],
            **{name: results.header["settings"].get(name) for name in _SHARED},
            **_quality(table, reference, bootstrap),
            **_acceptance(table, bootstrap),
            **_cost(table),
            **_static_gain(table, list(tables.values()), bootstrap),
        }
        for label, table in tables.items()
    ]


def _quality(table: MethodTable, reference: MethodTable | None, bootstrap: Bootstrap) -> dict:
    quality = bootstrap.ratio(table.sums["score"], table.sums["rows"])
    values = bootstrap.estimate_mean(quality, 0.0, 1.0).record("quality")
    values["cut_off_rate"] = table.rate("cut_off", "rows")
    if reference is None or reference is table:
        nothing = ("quality_drop", "quality_drop_ci", "prompts_better", "prompts_worse")
        return values | {"reference": None} | dict.fromkeys(nothing)
    drop = bootstrap.estimate_difference(*((each.sums["score"], each.sums["rows"]) for each in (reference, table)))
    gains = table.sums["score"] - reference.sums["score"]
    discordant = {"prompts_better": int((gains > 0).sum()), "prompts_worse": int((gains < 0).sum())}
    return values | {"reference": reference.label} | drop.record("quality_drop") | discordant


def _acceptance(table: MethodTable, bootstrap: Bootstrap) -> dict:
    rate = {"acceptance_rate": None, "acceptance_rate_ci": None}
    if "num_drafted" in table.sums:
        ratio = bootstrap.ratio(table.sums["num_accepted"], table.sums["num_drafted"])
        rate = bootstrap.estimate_mean(ratio, 0.0, 1.0).record("acceptance_rate")
    return rate | {
        "verified_acceptance_rate": table.rate("num_accepted", "num_accepted", "num_rejected"),
        "block_efficiency": table.rate("tokens", "num_rounds"),
        "accepted_per_position": table.accepted_per_position(),
        "mean_weight": table.rate("weight_sum", "weight_count"),
        "mean_tv": table.rate("tv_sum", "tv_count"),
        "mean_bias": table.rate("bias_sum", "bias_count"),
        "max_bias": table.largest("max_bias"),
        "mean_overshoot": table.rate("overshoot_sum", "overshoot_count"),
        "max_ratio": table.largest("max_ratio"),
        "relaxed_share": table.rate("relaxed", "tokens"),
    }


def _cost(table: MethodTable) -> dict:
    num_rows, num_tokens = (float(table.sums[name].sum()) for name in ("rows", "tokens"))
    return {
        "mean_tokens": table.rate("tokens", "rows"),
        "mean_rounds": table.rate("num_rounds", "rows"),
        "seconds_per_sample": table.seconds / num_rows,
        "tokens_per_second": num_tokens / table.seconds if table.seconds else None,
        "peak_memory_bytes": table.peak_bytes,
        "peak_memory_kind": table.peak_kind,
    }


def _static_gain(table: MethodTable, tables: list[MethodTable], bootstrap: Bootstrap) -> dict:
    curve = list({other.static_weight: other for other in tables if other.static_weight is not None}.values())
    if len(curve) < 2 or table.static_weight is not None or "num_drafted" not in table.sums:
        return {"static_gain": None, "static_gain_ci": None}
    *points, (rate, quality) = (
        (
            bootstrap.ratio(other.sums["num_accepted"], other.sums["num_drafted"]),
            bootstrap.ratio(other.sums["score"], other.sums["rows"]),
        )
        for other in [*curve, table]
    )
    rates, qualities = (np.stack(values, axis=1) for values in zip(*points))
    gain = bootstrap.estimate(quality - interpolate(rate, rates, qualities))
    return gain.record("static_gain")
