"""The figures of the studies in `results/` as records of one form, which the documentation's tables read."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hf_diversed.evaluation.intervals import Bootstrap
from hf_diversed.formatting import LOSSLESS


RESULTS = Path(__file__).parent.parent / "results"
TASKS = ("math", "summary", "code")
Row = Mapping[str, Any]


class Figure(NamedTuple):
    """One measured figure.

    Attributes:
        study: name of the file, without `.json`. task, method: what was measured.
        n: number of prompts; None where the study has no prompts.
        metric: name of the field. value, low, high: the figure and its bounds; None without bounds.
    """

    study: str
    task: str
    method: str
    n: int | None
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@cache
def figures(study: str) -> tuple[Figure, ...]:
    """Return the figures of a study, in the order of its file.

    Raises:
        FileNotFoundError: if the study was not measured.
    """
    found = json.loads(_path(study).read_text())
    return tuple(_READERS.get(study, _evaluation)(study, found))


def _path(study: str) -> Path:
    name = f"{study.partition('-')[0] if study.startswith('serving-') else study}.json"
    published = RESULTS / "real" / name
    return published if published.is_file() else RESULTS / name


def dtypes(study: str) -> str:
    """Return the dtype of a study's models; if there are several, with the number of prompts of each."""
    evaluations = json.loads(_path(study).read_text())["provenance"]["evaluations"]
    found = [(each["target"]["dtype"], each["n"]) for each in evaluations]
    return found[0][0] if len(found) == 1 else " and ".join(f"{dtype} ({n} prompts)" for dtype, n in found)


def data_path(study: str) -> str:
    """Return the path of a study, which stores the command that measured it."""
    return str(_path(study).relative_to(RESULTS.parent))


def flatten(study: str, task: str, method: str, n: int | None, row: Row) -> Iterator[Figure]:
    """Return the numbers of a row.

    Bounds are a field NAME_ci, or part of the value: a median with quartiles, a mean with its standard error, or a
    list of a value and its bounds.
    """
    for name, value in row.items():
        found: Sequence[Any] = ()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found = (value, *(row.get(f"{name}_ci") or ()))
        elif isinstance(value, Mapping) and "quartiles" in value:
            found = (value["median"], *value["quartiles"])
        elif isinstance(value, Mapping) and "error" in value:
            found = (value["mean"], value["mean"] - value["error"], value["mean"] + value["error"])
        elif isinstance(value, list) and not name.endswith("_ci") and len(value) == 3 and isinstance(value[0], float):
            found = value
        if found:
            yield Figure(study, task, method, n, name, *found)


def _evaluation(study: str, found: Row) -> Iterator[Figure]:
    """Evaluated methods, and differences between them as "A minus B"."""
    for row in found["records"]:
        yield from flatten(study, row.get("category") or row["task"], row["method"], row["n"], row)
    for row in found.get("comparisons", found.get("differences", ())):
        name = f"{row['method']} minus {row['minus']}"
        yield from flatten(study, found["records"][0]["task"], name, row.get("n"), row)


def _rows(*names: str, task: str = "", part: str = "") -> Callable[[str, Row], Iterator[Figure]]:
    """Return a reader of a list of rows whose method is in the given fields."""

    def read(study: str, found: Row) -> Iterator[Figure]:
        for row in (found[part] if part else found)["records"]:
            method = ", ".join(str(row[name]) for name in names)
            n = row.get("n", row.get("num_prompts", (found[part] if part else found).get("n")))
            yield from flatten(study, row.get(task, ""), method, n, row)

    return read


def _speed(study: str, found: Row) -> Iterator[Figure]:
    """Tokens per second, and the time for the same prompts, over those of the target."""
    for record in found["records"]:
        for row in record.get("quality", ()):
            yield from flatten(study, row["task"], row["method"], row["n"], row)
        for part in record["seconds"]:
            drafted = f", {record['num_assistant_tokens']} draft tokens" if "num_assistant_tokens" in record else ""
            reference = part["methods"]["target"]["turns"]
            for method, timed in part["methods"].items():
                for name, values in over_target(timed["turns"], reference).items():
                    metric = f"{name}, batch {part['batch_size']}"
                    yield Figure(study, record["task"] + drafted, method, record.get("num_prompts"), metric, *values)


def over_target(turns: Sequence[Row], reference: Sequence[Row]) -> dict[str, Sequence[float]]:
    """Return tokens per second ("speedup") and time relative to the target: value, or value, low, high.

    Several turns: median and range. One turn of several batches: ratio with 95% bounds clustered by batch.
    """
    if len(turns) > 1:
        pairs = list(zip(turns, reference))
        times = [sum(turn["seconds"]) / sum(target["seconds"]) for turn, target in pairs]
        lengths = [sum(turn["tokens"]) / sum(target["tokens"]) for turn, target in pairs]
        found = {"speedup": [length / time for length, time in zip(lengths, times)], "time": times}
        return {name: (median(values), min(values), max(values)) for name, values in found.items()}
    (turn,), (target,) = turns, reference
    bootstrap = _bootstrap(len(turn["seconds"]))
    time = bootstrap.ratio(turn["seconds"], target["seconds"])
    estimates = {"speedup": bootstrap.ratio(turn["tokens"], target["tokens"]) / time, "time": time}
    if len(turn["seconds"]) == 1:
        return {name: (float(values[0]),) for name, values in estimates.items()}
    return {name: astuple(bootstrap.estimate(values)) for name, values in estimates.items()}


@cache
def _bootstrap(batches: int) -> Bootstrap:
    return Bootstrap(batches)


def _compiled(study: str, found: Row) -> Iterator[Figure]:
    for threads, part in found["by_threads"].items():
        task = f"{threads} threads"
        yield from flatten(study, task, "static:0.7", None, part | part["throughput_ratio_by_batch"])


def _replay(study: str, found: Row) -> Iterator[Figure]:
    for size, row in found["batches"].items():
        yield from flatten(study, "", size, None, row)


def _learning(study: str, found: Row) -> Iterator[Figure]:
    """Methods of a task under names that are the same for all tasks: the matched ones depend on the head."""
    matched = {found["matched"]["diversed"][name]: f"{name}, matched" for name in ("lenience", "untrained")}
    task = found["records"][0]["task"]
    for row in found["records"]:
        yield from flatten(study, task, matched.get(row["method"], row["method"]), row["n"], row)
    others = ("lenience, matched", "untrained, matched", "spec_cascade:token_v3:0.95", "diversed-mixture")
    pooled = dict(zip(others, found["comparisons"]))  # of the heads of three seeds
    adjusted = holm(_pooled_p())
    for number, (other, row) in enumerate(pooled.items()):
        p_value = adjusted[4 * TASKS.index(task) + number]
        yield from flatten(study, task, f"three seeds minus {other}", None, row | {"p": p_value})


@cache
def _pooled_p() -> tuple[float, ...]:
    """Return the p-values of the pooled comparisons of all tasks, which are corrected together."""
    studies = [json.loads(_path(f"learning-{task}").read_text())["comparisons"] for task in TASKS]
    return tuple(1.0 if row["quality_p"] is None else row["quality_p"] for rows in studies for row in rows)


def _ceiling(study: str, found: Row) -> Iterator[Figure]:
    for order, free in found["free"].items():
        verified = 1.0 - (1.0 - found["lossless_acceptance"]) * (1.0 - free)
        yield from flatten(study, found["task"], order, found["positions"], {"free share": free, "verified": verified})


def _calibration(study: str, found: Row) -> Iterator[Figure]:
    for row in found["stated"]:
        yield from flatten(study, found["task"], f"{100 * row['max_drop']:g}", found["calibrations"], row)


def _costs(study: str, found: Row) -> Iterator[Figure]:
    """Costs of single tokens: the decoding with heads trained on them, and the orders of tokens."""
    rows = found.get("decoding", ())
    # Lossless decoding is lenience:1.0, an end of the curve that gains are measured from.
    rows = [row | {"gain": None, "gain_ci": None} if row["method"] == LOSSLESS else row for row in rows]
    compared = [row for row in rows if row.get("gain") is not None]
    adjusted = dict(zip((row["method"] for row in compared), holm([row["gain_p"] for row in compared])))
    for row in rows:
        p_value = {"p": adjusted[row["method"]]} if row["method"] in adjusted else {}
        yield from flatten(study, found["task"], row["method"], row["n"], {**row, **p_value})
    explained = found.get("r2") or {name: head["r2"] for name, head in found["heads"].items()}
    for order, rows in found["curve"].items():
        values = "cost" if order == "lenience" else "saving"
        points = {f"{row['share']:.0%} kept": [row[values], *row[f"{values}_ci"]] for row in rows}
        known = {"R²": explained[order]} if order in explained else {}
        yield from flatten(study, "orders", order, None, points | known)


_READERS: dict[str, Callable[[str, Row], Iterator[Figure]]] = {
    **{f"qwen-coder-speed-{name}": _speed for name in ("mbpp-t0", "gsm8k-t0", "mbpp-t0.7-k20-p0.8")},
    **{f"qwen-coder-speed-batch8-{suffix}": _speed for suffix in ("t0", "t0.7-k20-p0.8")},
    **dict.fromkeys(("lookup-scitldr", "lenience-scitldr", "lookup-rewrite"), _speed),
    **{f"learning-{task}": _learning for task in TASKS},
    **dict.fromkeys(("ceiling-math", "ceiling-summary"), _ceiling),
    **dict.fromkeys(("calibration", "calibration-summary"), _calibration),
    **dict.fromkeys(("counterfactual-math", "counterfactual-summary", "held-out-costs-gsm8k"), _costs),
    "compiled": _compiled,
    "replay": _replay,
    "serving-acceptance": _rows("verifier", part="acceptance"),
    "random-draft": _rows("engine", "batch_size"),
    "head-costs": _rows("engine"),
    "importance": _rows("method"),
    **dict.fromkeys(("sampling-check", "sampling-check-humaneval", "sampling-check-humaneval-first"), _rows("method")),
    "transfer": _rows("trained_on", task="tested_on"),
}


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests, in the same order: the probability that any true null hypothesis
    gets a value of at most 5% is at most 5% (Holm 1979, Scand. J. Statist. 6:65)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.array(p_values, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(value) for value in adjusted]
