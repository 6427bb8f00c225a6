"""Render studies of token heads: their gain over lenience, its upper bound, and calibrated strictness."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_diversed.formatting import percent, with_bounds
from tools.markdown import prompts, table


TASKS = ("math", "summary", "code")
CASCADE = "spec_cascade:token_v3:0.95"
_STUDY = "python -m benchmarks.learning {} --samples-per-prompt {}"
COMMANDS = {
    "learning-math.json": _STUDY.format("math", 2) + " --thorough",
    "learning-summary.json": "python -m benchmarks.learning summary",
    "learning-code.json": _STUDY.format("code", 1) + " --num-examples 500",
    "ceiling-math.json": "python -m benchmarks.ceiling math",
    "ceiling-summary.json": "python -m benchmarks.ceiling summary",
    "calibration.json": "python benchmarks/calibration.py",
    "calibration-summary.json": "python benchmarks/calibration.py --task summary --folder build/calibration-summary",
}
_WORDS = {
    "lossless": "lossless",
    "diversed-mixture": "mixture head: one weight per position",
    "diversed": "**token head**",
    "seed-43": "token head, seed 43",
    "seed-44": "token head, seed 44",
    "drop-0.005": "trained for half the quality drop",
    "frozen-slope": "its slope on log p/q not learned",
    "frozen-bias": "its bias not learned",
    "hidden-states": "with hidden states as inputs",
    "gelu-64": "64 GELU units",
}
_MATCHED = {"lenience": "lenience, matched", "untrained": "untrained head, matched"}
_BEST = "diversed"
_ORDERS = {
    "oracle": "an oracle",
    "lenience": "p/q, as lenience",
    "mixture head": "the mixture head",
    "token head": "the token head",
}
Found = Mapping[str, Any]


def studies(folder: Path) -> dict[str, str]:
    """Return the studies that have results, by their headings."""
    learned = _found(folder, "learning-{}.json")
    parts = {"Trained heads against lenience": _learning(learned)} if learned else {}
    if "math" in learned:
        parts["Seeds, drops, parameters and inputs"] = _ablations(learned["math"])
    if ceilings := _found(folder, "ceiling-{}.json"):
        parts["Upper bound of the gain"] = _ceilings(ceilings)
    calibrated = [folder / name for name in COMMANDS if name.startswith("calibration")]
    calibrations = [_calibration(json.loads(path.read_text())) for path in calibrated if path.is_file()]
    return {**parts, "Calibrated strictness": "\n\n".join(calibrations)}


def _found(folder: Path, pattern: str) -> dict[str, Found]:
    paths = {task: folder / pattern.format(task) for task in TASKS}
    return {task: json.loads(path.read_text()) for task, path in paths.items() if path.is_file()}


def _learning(found: Mapping[str, Found]) -> str:
    """Return tables of each task's methods at similar acceptance, and of the trained heads' differences to them."""
    names = ["lossless", "diversed-mixture", CASCADE, *_MATCHED, _BEST, "seed-43", "seed-44"]
    rows = []
    for name in names:
        row = [_WORDS.get(name) or _MATCHED.get(name) or f"`{name}`"]
        for task in found.values():
            record = _record(task, task["matched"][_BEST][name] if name in _MATCHED else name)
            row += [with_bounds(record, "acceptance_rate"), with_bounds(record, "quality")]
        rows.append(row)
    header = ["method", *(f"{task}: {what}" for task in found for what in ("accepted", _metric(found[task])))]
    samples = "; ".join(f"{task}: {prompts(study['records'])}" for task, study in found.items())
    note = (
        f'"Matched" methods are set to the acceptance of the token head on rollouts of training prompts ({samples}):'
    )
    return "\n\n".join([note, table(header, rows), _differences(found)])


def _differences(found: Mapping[str, Found]) -> str:
    """Return a table of the differences between heads of three seeds, pooled, and each method."""
    kinds = [*_MATCHED.values(), f"`{CASCADE}`", "the mixture head"]
    values = [[study["comparisons"][place] for study in found.values()] for place in range(len(kinds))]
    flat = [1.0 if one["quality_p"] is None else one["quality_p"] for row in values for one in row]
    adjusted = iter(holm(flat))
    rows = [
        [
            kind,
            *(
                cell
                for one in row
                for cell in (_points(one, "acceptance_rate"), _points(one, "quality", next(adjusted)))
            ),
        ]
        for kind, row in zip(kinds, values)
    ]
    header = [
        "heads of three seeds minus",
        *(f"{task}: {what}" for task in found for what in ("accepted", "quality")),
    ]
    note = (
        "In points, with 95% intervals clustered by prompt; p-values are corrected for all comparisons of this table "
        "(Holm). Intervals do not include the variation between seeds:"
    )
    return f"{note}\n\n{table(header, rows)}"


def _ablations(study: Found) -> str:
    names = [name for name in _WORDS if name not in ("lossless", "diversed-mixture") and _has(study, name)]
    differences = {one["minus"]: one for one in study["comparisons"] if one["method"] == _BEST}
    rows = [
        [
            _WORDS[name],
            *(with_bounds(_record(study, name), figure) for figure in ("acceptance_rate", "quality")),
            _points(differences[name], "quality") if name in differences else "-",
        ]
        for name in names
    ]
    header = ("head on math", "accepted / drafted", _metric(study), "quality of the packaged head minus its own")
    return f"{prompts(study['records'])}:\n\n{table(header, rows)}"


def _ceilings(found: Mapping[str, Found]) -> str:
    rows = []
    for task, study in found.items():
        lossless = study["lossless_acceptance"]
        for order, words in _ORDERS.items():
            free = study["free"][order]
            cells = [_cost(row) for row in study["shares"][order]]
            rows.append([task, words, *cells, percent(free), percent(1.0 - (1.0 - lossless) * (1.0 - free))])
    first = next(iter(found.values()))
    shares = [f"{row['kept']:.0%} kept" for row in first["shares"]["oracle"]]
    header = ("task", "ranked by", *shares, "free share", "verified acceptance with it")
    tried = ", ".join(f"{study['positions']:,} ({task})" for task, study in found.items())
    lossless = ", ".join(f"{percent(study['lossless_acceptance'])} ({task})" for task, study in found.items())
    note = (
        f"At positions where lossless decoding rejects ({tried}), the target continues both the draft token and its "
        f"replacement, {first['continuations']} times each. Cells are the cost of keeping a share of the rejected "
        "tokens, lowest rank first, in points of the score per completion, to first order. The oracle ranks tokens by "
        "one half of their continuations, and the cost is measured on the other half. The free share is the largest "
        f"one without a cost. Lossless decoding accepts {lossless} of the tokens it verifies:"
    )
    return f"{note}\n\n{table(header, rows)}"


def _calibration(found: Found) -> str:
    stated = [
        [
            f"{100 * row['max_drop']:g}",
            percent(row["found"]),
            percent(row["kept"]),
            _strictnesses(row["strictnesses"]),
        ]
        for row in found["stated"]
    ]
    rows_by_strictness = [
        [f"{row['strictness']:g}", percent(row["acceptance_rate"]), _in_points(row["drop"])] for row in found["pool"]
    ]
    note = (
        f"Strictness of the {found['task']} head, and {found['calibrations']} calibrations of "
        f"{found['prompts_per_calibration']} prompts each, resampled from the measured ones, at a confidence of "
        f"{found['confidence']:.0%}:"
    )
    worst = "No strictness has a quality drop here, so no calibration could be wrong."
    if found["hardest"]:
        kept = percent(min(row["kept"] for row in found["hardest"]))
        worst = (
            "The hardest case is a tolerated drop just below the true drop of a strictness. There, at least "
            f"{kept} of the calibrations found no strictness with a larger drop."
        )
    header = (
        "tolerated drop, points",
        "found a strictness",
        "true drop within it",
        "strictness (count)",
    )
    curve = table(("`diversed_strictness`", "accepted / drafted", "below the target, points"), rows_by_strictness)
    return "\n\n".join([note, curve, table(header, stated), worst])


def _strictnesses(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{value} ({count})" for value, count in counts.items()) or "-"


def _cost(found: Found) -> str:
    low, high = found["cost_ci"]
    return f"{_in_points(found['cost'])} ({_in_points(low)} to {_in_points(high)})"


def _points(found: Found, name: str, p_value: float | None = None) -> str:
    bounds = found[f"{name}_ci"]
    text = f"{100 * found[name]:+.2f}"
    if bounds is not None:
        text += f" ({100 * bounds[0]:+.2f} to {100 * bounds[1]:+.2f})"
    return text if p_value is None else f"{text}, p {_p(p_value)}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _in_points(value: float) -> str:
    return f"{100 * value:.1f}".replace("-0.0", "0.0")


def _has(study: Found, method: str) -> bool:
    return any(record["method"] == method for record in study["records"])


def _record(study: Found, method: str) -> Found:
    return next(record for record in study["records"] if record["method"] == method)


def _metric(study: Found) -> str:
    return str(study["records"][0]["metric"])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests, in the same order: the probability that any true null hypothesis
    gets a value of at most 5% is at most 5% (Holm 1979, Scand. J. Statist. 6:65)."""
    order = np.argsort(p_values, kind="stable")
    scaled = np.array(p_values, dtype=np.float64)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return [float(value) for value in adjusted]
