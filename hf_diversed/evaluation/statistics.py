"""Records of methods with 95% bounds, from finished calls. Pure numpy.

Bounds are those of a bootstrap clustered by prompt: samples of one prompt resemble each other, so prompts are drawn
with replacement, each with all its samples. One matrix of counts is used for all methods: they ran on the same prompts
and are compared within a replicate. Paired differences of scores of 0 and 1 with one sample per prompt have bounds in
closed form.

Letters: P prompts, R replicates.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from hf_diversed.verifiers.names import LOSSLESS, PLAIN


# Counters that are summed over rows and prompts, by their names in `SpeculativeStats`.
COUNTERS = ("num_rounds", "num_drafted", "num_accepted", "num_rejected")
# Replicates in which the statistic is undefined are left out; if their share is larger, there is no interval.
_MAX_UNDEFINED = 0.05
_Z = NormalDist().inv_cdf(0.975)  # for two-sided bounds of 95%
_ROUNDING = 1e-9  # statistics closer than this count as equal


@dataclass(frozen=True)
class Estimate:
    """A statistic with 95% bounds; NaN where it is not defined.

    Attributes:
        value: on the original prompts.
        low, high: the bounds.
    """

    value: float
    low: float
    high: float

    def record(self, name: str) -> dict:
        """Return the value and its bounds, as `name` and `name_ci`, for strict JSON: None where they are NaN."""
        value, low, high = (None if math.isnan(number) else number for number in (self.value, self.low, self.high))
        return {name: value, f"{name}_ci": None if low is None else [low, high]}


class Bootstrap:
    """Resamples of P prompts. A statistic is an array `[R + 1]`: on the original prompts, then once per replicate.

    Combine statistics by arithmetic on these arrays before `estimate`; differences are then paired.
    Bounds of `estimate` are percentiles, so a statistic that does not vary over the prompts (every answer wrong) gets
    bounds of width 0, which are meaningless; use `estimate_mean` there.

    Args:
        num_prompts: P. replicates: R. The counts take 8 (R + 1) P bytes.
        seed: seed of the resamples.
    """

    def __init__(self, num_prompts: int, replicates: int = 10_000, seed: int = 0):
        generator = np.random.default_rng(seed)
        self.counts = np.ones((replicates + 1, num_prompts))
        for row in self.counts[1:]:  # one row at a time: all draws at once would take four times the memory
            row[:] = np.bincount(generator.integers(num_prompts, size=num_prompts), minlength=num_prompts)

    def totals(self, per_prompt: np.ndarray) -> np.ndarray:
        """Return sums over prompts: `[P]` -> `[R + 1]`."""
        return self.counts @ np.asarray(per_prompt, dtype=np.float64)

    def ratio(self, numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
        """Return the ratio of sums of `[P]` as `[R + 1]`; NaN where the denominators sum to 0.

        A mean is such a ratio: the sum of scores over the number of samples.
        """
        above, below = self.totals(numerators), self.totals(denominators)
        known = below != 0
        return np.where(known, above / np.where(known, below, 1.0), np.nan)

    @staticmethod
    def estimate(statistic: np.ndarray) -> Estimate:
        """Return value and percentile bounds of a statistic `[R + 1]`."""
        value, replicates = float(statistic[0]), statistic[1:]
        known = replicates[~np.isnan(replicates)]
        if np.isnan(value) or len(known) < (1.0 - _MAX_UNDEFINED) * len(replicates):
            return Estimate(value, np.nan, np.nan)
        low, high = np.quantile(known, [0.025, 0.975])
        return Estimate(value, float(low), float(high))

    def estimate_mean(self, statistic: np.ndarray, low: float, high: float) -> Estimate:
        """Return `estimate` of a mean of values in [low, high]; also valid if all prompts have the same value.

        In that case all replicates are equal. The probability of any other value is then at most Wilson's upper
        bound for 0 of P, which bounds the mean in both directions. For values of 0 and 1 this is Wilson's interval
        with the prompts as trials.
        """
        found = self.estimate(statistic)
        if np.isnan(found.low) or np.ptp(statistic[~np.isnan(statistic)]) > _ROUNDING:
            return found
        unseen = wilson(0, self.counts.shape[1])[1]
        below, above = found.value - low, high - found.value
        return Estimate(found.value, found.value - unseen * below, found.value + unseen * above)

    def estimate_difference(
        self, first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
    ) -> Estimate:
        """Return the mean of `first` minus that of `second`: sums of scores in [0, 1], and numbers of scores, `[P]`.

        With one score of 0 or 1 per prompt, the bounds are those of `paired_bounds`. Percentiles of replicates cannot
        cross 0 if all prompts with different scores favour the same side, and are too narrow if few scores differ.
        """
        statistic = self.ratio(*first) - self.ratio(*second)
        if not all((counts == 1).all() and np.isin(sums, (0, 1)).all() for sums, counts in (first, second)):
            return self.estimate_mean(statistic, -1.0, 1.0)
        gains = first[0] - second[0]
        return Estimate(
            float(statistic[0]), *paired_bounds(int((gains > 0).sum()), int((gains < 0).sum()), len(gains))
        )


def paired_bounds(better: int, worse: int, pairs: int) -> tuple[float, float]:
    """Return 95% bounds on the difference of two paired proportions (Bonett and Price 2012, JEBS 37:479).

    Args:
        better, worse: numbers of pairs in which only the first, and only the second, is a success.
    """
    p, q = (better + 1) / (pairs + 2), (worse + 1) / (pairs + 2)
    half = _Z * math.sqrt((p + q - (p - q) ** 2) / (pairs + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return 95% bounds on a probability from independent trials (Wilson 1927, JASA 22:209); the width is never 0."""
    rate, scale = successes / trials, 1.0 + _Z * _Z / trials
    centre = (rate + _Z * _Z / (2 * trials)) / scale
    half = _Z / scale * math.sqrt(rate * (1.0 - rate) / trials + _Z * _Z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


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


@dataclass
class Results:
    """The finished calls of an evaluation.

    Attributes:
        header: settings, task, models and prompts of all entries.
        entries: by (method, batch, sample), one finished call: `definition`, `seconds`, and `rows`, lists with one
            value per completion.
        sessions: provenance of each session that measured calls.
    """

    header: dict
    entries: dict[tuple[str, int, int], dict] = field(default_factory=dict)
    sessions: list[dict] = field(default_factory=list)

    def add(self, entry: dict) -> None:
        """Add a finished call; of two with the same key, the first is kept."""
        self.entries.setdefault((entry["method"], entry["batch"], entry["sample"]), entry)

    def labels(self) -> list[str]:
        """The methods, in the order in which they were added."""
        return list(dict.fromkeys(label for label, _, _ in self.entries))

    def missing(self, labels: Iterable[str]) -> list[tuple[str, int, int]]:
        """Return the keys of the unfinished calls of these methods."""
        batches, samples = self.header["num_batches"], self.header["settings"]["samples_per_prompt"]
        keys = ((label, batch, sample) for label in labels for batch in range(batches) for sample in range(samples))
        return [key for key in keys if key not in self.entries]

    def definitions(self) -> dict[str, str]:
        """Return the definition of each method by its label, see `Method.definition`."""
        return {entry["method"]: entry["definition"] for entry in self.entries.values()}


class MethodTable:
    """One method's rows, and their sums per prompt (`sums[name]`, float64 `[P]`)."""

    def __init__(self, results: Results, label: str):
        entries = [entry for (method, _, _), entry in sorted(results.entries.items()) if method == label]
        self.label = label
        self.seconds = math.fsum(entry["seconds"] for entry in entries)
        rows = [entry["rows"] for entry in entries]
        # Calls of a pooled study may have been recorded with other columns.
        names = [name for name in rows[0] if all(name in each for each in rows)]
        self.rows = {name: [value for each in rows for value in each[name]] for name in names}
        prompts, num_prompts = np.array(self.rows["prompt"]), results.header["n"]
        self.sums = {
            name: np.bincount(prompts, np.array(values, dtype=np.float64), num_prompts)
            for name, values in self.rows.items()
            if name != "prompt" and isinstance(values[0], (int, float))
        }
        self.sums["rows"] = np.bincount(prompts, minlength=num_prompts).astype(np.float64)

    def rate(self, numerator: str, *denominators: str) -> float | None:
        """Return the ratio of two totals; None if there is no data."""
        if not {numerator, *denominators} <= self.sums.keys():
            return None
        below = sum(float(self.sums[name].sum()) for name in denominators)
        return float(self.sums[numerator].sum()) / below if below else None


def summarize(results: Results, labels: Sequence[str] | None = None) -> list[dict]:
    """Return one record per method, ready for strict JSON; values that do not exist for a method are None.

    `*_ci` are two-sided 95% bounds over prompts, see `Bootstrap`; those of `quality_drop` from `estimate_difference`.
    `quality_drop` is the `reference` ("target", else "lossless") minus the method on the same prompts.
    `prompts_better` and `prompts_worse` are the numbers of prompts with a higher and a lower score than the
    reference. Rates count as in `SpeculativeStats`. Times are of batched calls.
    `cut_off_rate` is the share of completions that ended at `max_new_tokens`, before EOS or a stop string.

    Args:
        labels: the methods to include; None for all.

    Raises:
        ValueError: if calls of these methods are missing.
    """
    labels = results.labels() if labels is None else labels
    missing = results.missing(labels)
    if missing or not labels:
        first = f", the first of them (method, batch, sample) = {missing[0]}" if missing else ""
        raise ValueError(f"{len(missing)} calls are missing{first}; run `evaluate` again to finish them.")
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
    }


def _cost(table: MethodTable) -> dict:
    num_rows, num_tokens = (float(table.sums[name].sum()) for name in ("rows", "tokens"))
    return {
        "mean_tokens": table.rate("tokens", "rows"),
        "mean_rounds": table.rate("num_rounds", "rows"),
        "seconds_per_sample": table.seconds / num_rows,
        "tokens_per_second": num_tokens / table.seconds if table.seconds else None,
    }
