"""The figures of the studies in `results/` as records of one form, which the documentation's tables read."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from hf_diversed.evaluation.statistics import Bootstrap


RESULTS = Path(__file__).parent.parent / "results"
# Published heads of the Qwen2.5-Coder pair, for summaries.
TOKEN_HEAD = "model_cards/qwen2.5-coder-1.5b-0.5b-scitldr"
MIXTURE_HEAD = f"{TOKEN_HEAD}-mixture"
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
    read = _speed if study.startswith("qwen-coder-speed-") else _READERS.get(study, _evaluation)
    return tuple(read(study, found))


def _path(study: str) -> Path:
    published = RESULTS / "real" / f"{study}.json"
    return published if published.is_file() else RESULTS / f"{study}.json"


def data_path(study: str) -> str:
    """Return the path of a study, which stores the command that measured it."""
    return str(_path(study).relative_to(RESULTS.parent))


def flatten(study: str, task: str, method: str, n: int | None, row: Row) -> Iterator[Figure]:
    """Return the numbers of a row, with the bounds in a field NAME_ci, and medians with quartiles."""
    for name, value in row.items():
        found: Sequence[Any] = ()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found = (value, *(row.get(f"{name}_ci") or ()))
        elif isinstance(value, Mapping) and "quartiles" in value:
            found = (value["median"], *value["quartiles"])
        if found:
            yield Figure(study, task, method, n, name, *found)


def _evaluation(study: str, found: Row) -> Iterator[Figure]:
    """Evaluated methods, and differences between them as "A minus B"."""
    for row in found["records"]:
        yield from flatten(study, row["task"], row["method"], row["n"], row)
    for row in (*found.get("comparisons", ()), *found.get("at_equal_acceptance", ())):
        name = f"{row['method']} minus {row['minus']}"
        yield from flatten(study, found["records"][0]["task"], name, row.get("n"), row)


def _serving(study: str, found: Row) -> Iterator[Figure]:
    for row in found["acceptance"]["records"]:
        yield from flatten(study, "", row["verifier"], found["acceptance"]["n"], row)


def _speed(study: str, found: Row) -> Iterator[Figure]:
    """Mean seconds per batch; tokens per second and speed for the same prompts, relative to the target."""
    for record in found["records"]:
        for part in record["seconds"]:
            drafted = f", {record['num_assistant_tokens']} draft tokens" if "num_assistant_tokens" in record else ""
            reference = part["methods"]["target"]["turns"]
            for method, timed in part["methods"].items():
                seconds = fmean(second for turn in timed["turns"] for second in turn["seconds"])
                for name, values in {"seconds": (seconds,), **over_target(timed["turns"], reference)}.items():
                    metric = f"{name}, batch {part['batch_size']}"
                    yield Figure(study, record["task"] + drafted, method, record.get("num_prompts"), metric, *values)


def over_target(turns: Sequence[Row], reference: Sequence[Row]) -> dict[str, Sequence[float]]:
    """Return "tokens/s" and "speedup" relative to the target: value, or value, low, high. The speedup is the target's
    time for the same prompts over that of the method, whose answers can have other lengths.

    Several turns: median and range. One turn of several batches: ratio with 95% bounds clustered by batch.
    """
    if len(turns) > 1:
        pairs = list(zip(turns, reference))
        speedups = [sum(target["seconds"]) / sum(turn["seconds"]) for turn, target in pairs]
        lengths = [sum(turn["tokens"]) / sum(target["tokens"]) for turn, target in pairs]
        found = {"tokens/s": [length * speedup for length, speedup in zip(lengths, speedups)], "speedup": speedups}
        return {name: (median(values), min(values), max(values)) for name, values in found.items()}
    (turn,), (target,) = turns, reference
    bootstrap = _resamples(len(turn["seconds"]))
    speedup = bootstrap.ratio(target["seconds"], turn["seconds"])
    estimates = {"tokens/s": bootstrap.ratio(turn["tokens"], target["tokens"]) * speedup, "speedup": speedup}
    if len(turn["seconds"]) == 1:
        return {name: (float(values[0]),) for name, values in estimates.items()}
    return {name: astuple(bootstrap.estimate(values)) for name, values in estimates.items()}


_resamples = cache(Bootstrap)


def _counted(study: str, found: Row) -> Iterator[Figure]:
    """Speeds over all tasks, relative to the constant number with the highest speed, and this number as "best".

    The metric is "cost C", where a draft token costs C target forward passes; the rule of "confidence C" assumes C.
    """
    groups: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row in found["records"]:
        task = f"{row['verifier']}, {'sampled' if row['temperature'] else 'greedy'}"
        groups[task][row["method"]].update({name: row[name] for name in ("n", "tokens", "target", "draft")})
    for task, methods in groups.items():
        for rule in [name for name in methods if name.startswith("confidence")]:
            cost = float(rule.removeprefix("confidence "))
            speeds = {name: each["tokens"] / (each["target"] + cost * each["draft"]) for name, each in methods.items()}
            best = max((name for name in speeds if name.startswith("constant")), key=speeds.__getitem__)
            n, metric = methods[rule]["n"], f"cost {cost:g}"
            yield Figure(study, task, "best", n, metric, float(best.removeprefix("constant ")))
            for name, speed in speeds.items():
                if name == rule or not name.startswith("confidence"):
                    yield Figure(study, task, name.removesuffix(f" {cost:g}"), n, metric, speed / speeds[best])


def _compiled(study: str, found: Row) -> Iterator[Figure]:
    for record in found["records"]:
        ratios = record["ratios"].get("upstream", {})
        yield from flatten(study, str(record["batch_size"]), record["method"], None, ratios)


_READERS: dict[str, Callable[[str, Row], Iterator[Figure]]] = {
    "draft-lengths-counted": _counted,
    "compiled": _compiled,
    "serving": _serving,
}
