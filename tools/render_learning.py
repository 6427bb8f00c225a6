"""Studies of heads that see the drafted token: does learning pay, what could, and what the dial does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_diversed.evaluation.intervals import holm
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
    "diversed-mixture": "mixture head: one weight for all tokens",
    "diversed": "**head that sees the token**",
    "seed-43": "the same, seed 43",
    "seed-44": "the same, seed 44",
    "drop-0.005": "trained for half the drop",
    "frozen-slope": "its slope on log p/q not learned",
    "frozen-bias": "its bias not learned",
    "hidden-states": "hidden states seen as well",
    "gelu-64": "64 GELU units",
}
_MATCHED = {"lenience": "lenience, matched", "untrained": "its start, untrained, matched"}
_BEST = "diversed"
_ORDERS = {
    "oracle": "an oracle",
    "lenience": "p/q, as lenience",
    "mixture head": "the mixture head",
    "token head": "the head that sees the token",
}
Found = Mapping[str, Any]


def studies(folder: Path) -> dict[str, str]:
    """Those that were made, by their headings."""
    learned = _found(folder, "learning-{}.json")
    parts = {"Does learning pay?": _learning(learned)} if learned else {}
    if "math" in learned:
        parts["Seeds, bounds, parts and inputs of a head"] = _ablations(learned["math"])
    if ceilings := _found(folder, "ceiling-{}.json"):
        parts["What is there to gain?"] = _ceilings(ceilings)
    calibrated = [folder / name for name in COMMANDS if name.startswith("calibration")]
    certified = [_calibration(json.loads(path.read_text())) for path in calibrated if path.is_file()]
    return {**parts, "Certified dials": "\n\n".join(certified)}


def _found(folder: Path, pattern: str) -> dict[str, Found]:
    paths = {task: folder / pattern.format(task) for task in TASKS}
    return {task: json.loads(path.read_text()) for task, path in paths.items() if path.is_file()}


def _learning(found: Mapping[str, Found]) -> str:
    """Each task's rules at about one acceptance, and what the trained heads are better by."""
    names = ["lossless", "diversed-mixture", CASCADE, *_MATCHED, _BEST, "seed-43", "seed-44"]
    rows = []
    for name in names:
        row = [_WORDS.get(name) or _MATCHED.get(name) or f"`{name}`"]
        for task in found.values():
            record = _record(task, task["matched"][_BEST][name] if name in _MATCHED else name)
            row += [with_bounds(record, "acceptance_rate"), with_bounds(record, "quality")]
        rows.append(row)
    header = ["rule", *(f"{task}: {what}" for task in found for what in ("accepted", _metric(found[task])))]
    samples = "; ".join(f"{task}: {prompts(study['records'])}" for task, study in found.items())
    note = (
        "Lenience and the untrained start are set so that they would accept as much as the head "
        f"on rollouts of training prompts ({samples}):"
    )
    return "\n\n".join([note, table(header, rows), _differences(found)])


def _differences(found: Mapping[str, Found]) -> str:
    """Heads of three seeds, taken together, against each rule."""
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
        "heads of three seeds against",
        *(f"{task}: {what}" for task in found for what in ("accepted", "better by")),
    ]
    note = (
        "In points, with 95% bounds clustered by prompt; p is corrected for all comparisons of this table (Holm). "
        "Seeds count as fixed:"
    )
    return f"{note}\n\n{table(header, rows)}"


def _ablations(study: Found) -> str:
    names = [name for name in _WORDS if name not in ("lossless", "diversed-mixture") and _has(study, name)]
    beside = {one["minus"]: one for one in study["comparisons"] if one["method"] == _BEST}
    rows = [
        [
            _WORDS[name],
            *(with_bounds(_record(study, name), figure) for figure in ("acceptance_rate", "quality")),
            _points(beside[name], "quality") if name in beside else "-",
        ]
        for name in names
    ]
    header = ("head on math", "accepted / drafted", _metric(study), "the packaged one is better by")
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
    header = ("task", "who chooses", *shares, "free", "verified acceptance then")
    tried = ", ".join(f"{study['positions']:,} ({task})" for task, study in found.items())
    lossless = ", ".join(f"{percent(study['lossless_acceptance'])} ({task})" for task, study in found.items())
    note = (
        f"Tokens that lossless decoding rejects ({tried}), continued by the target from both "
        f"branches, {first['continuations']} times each. Costs of keeping shares of them, in points of the score per "
        "completion, to first order; the oracle goes by one half of the continuations and is charged by the other. "
        f"Free is the largest share that costs nothing; lossless decoding accepts {lossless} of what it verifies:"
    )
    return f"{note}\n\n{table(header, rows)}"


def _calibration(found: Found) -> str:
    stated = [
        [f"{100 * row['max_drop']:g}", percent(row["certified"]), percent(row["kept"]), _dials(row["dials"])]
        for row in found["stated"]
    ]
    dial = [
        [f"{row['strictness']:g}", percent(row["acceptance_rate"]), _in_points(row["drop"])] for row in found["pool"]
    ]
    note = (
        f"The dial of the {found['task']} head, and {found['calibrations']} calibrations of "
        f"{found['prompts_per_calibration']} prompts each, drawn anew from that pool, at a confidence of "
        f"{found['confidence']:.0%}:"
    )
    worst = "No dial falls below the target here, so no statement could fail."
    if found["hardest"]:
        kept = percent(min(row["kept"] for row in found["hardest"]))
        worst = f"Of statements just below a dial's own drop, which are hardest to keep, {kept} were kept at worst."
    header = ("tolerated drop, points", "certified some dial", "kept their word", "dials taken")
    curve = table(("`diversed_strictness`", "accepted / drafted", "below the target, points"), dial)
    return "\n\n".join([note, curve, table(header, stated), worst])


def _dials(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{dial} ({count})" for dial, count in counts.items()) or "-"


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
