"""Render the study of heads trained on the costs of single tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_diversed.formatting import percent, with_bounds
from tools.markdown import table


COMMANDS = {
    "counterfactual-summary.json": "python -m benchmarks.counterfactual summary --samples 3 "
    "--lenience 0.12 1e-4 1e-5 1e-6 1e-7 1e-8 1e-10 "
    "--heads counterfactual@0.6 counterfactual@0.55 counterfactual@0.5 counterfactual@0.35 per_gain@0.55 per_gain@0.5 "
    "per_gain@0.35 same_inputs@0.55 lookahead@0.55 target_after@0.55"
}
_LENIENCE = "lenience"
_WORDS = {_LENIENCE: "p/q, as lenience", "packaged head": "the packaged head, trained on rollouts"}
_KEPT = (
    "Each order keeps a share of the rejected tokens of the test labels. The cost is in points of {} per rejection of "
    "lossless decoding, to first order; the saving is the cost of lenience's order minus it. R² is the share of the "
    "labels' variance that the head explains on held-out training prompts:"
)
_GAINED = (
    "As above, but the share is of tokens gained. Keeping a rejected token gains that token and the draft tokens "
    "after it that lossless verification accepts. Each order keeps tokens until their gain is the given share of the "
    'gain of keeping all. "Per token gained" is the head that is trained for this '
    "(`FitSettings(per_token_gained=True)`):"
)
_BOUNDS = "95% intervals are clustered by prompt, for the given order, and not corrected for several comparisons."
Found = Mapping[str, Any]


def studies(folder: Path) -> dict[str, str]:
    """Return the parts of the study by their headings; empty without results."""
    paths = [folder / name for name in COMMANDS if (folder / name).is_file()]
    found = [json.loads(path.read_text()) for path in paths]
    if not found:
        return {}
    return {
        "Measured: labels": "\n\n".join(map(_labels, found)),
        "Measured: cost per rejected token kept": "\n\n".join(
            [_KEPT.format(found[0]["metric"]), *(_curve(study, "curve", "kept") for study in found), _BOUNDS]
        ),
        "Measured: cost per token gained": "\n\n".join(
            [_GAINED, *(_curve(study, "gain_curve", "gained") for study in found)]
        ),
        "Measured: decoding": "\n\n".join(_decoding(study) for study in found if "decoding" in study),
    }


def _labels(study: Found) -> str:
    rows = [
        [
            split,
            f"{one['labels']:,}",
            f"{one['prompts']:,}",
            str(one["continuations"]),
            *(_points(one[name]) for name in ("mean_cost", "deviation", "noise")),
            percent((one["noise"] / one["deviation"]) ** 2),
        ]
        for split, one in study["labels"].items()
    ]
    header = ("split", "labels", "prompts", "continuations per branch", "mean cost", "deviation", "noise", "share")
    note = (
        f"Embedded pair, {study['task']}, temperature 1; costs are in points of {study['metric']}. Noise is the "
        "standard deviation of a label due to the sampled continuations, and share its part of the labels' variance. "
        "It excludes the variance over residual tokens:"
    )
    return f"{note}\n\n{table(header, rows)}"


def _curve(study: Found, name: str, goal: str) -> str:
    """Return costs and savings by order, and the shares at which the interval of the saving excludes 0.

    Args:
        name: of the curve in the study. goal: what the shares are of.
    """
    rows = []
    clear: list[str] = []
    unclear: list[str] = []
    for order, points in study[name].items():
        head, words = study["heads"].get(order), _WORDS.get(order, order)
        saved = [f"{point['share']:.0%}" for point in points if point["saving_ci"][0] > 0.0]
        if head is not None:
            (clear if saved else unclear).append(f"{words} ({', '.join(saved)})" if saved else words)
        rows.append(
            [
                words,
                "-" if head is None else percent(head["r2"]),
                *(_bounded(point, "cost") for point in points),
                *("-" if order == _LENIENCE else _bounded(point, "saving") for point in points),
            ]
        )
    shares = [f"{point['share']:.0%} {goal}" for point in study[name][_LENIENCE]]
    header = ("order", "R²", *(f"cost, {share}" for share in shares), *(f"saving, {share}" for share in shares))
    lines = [f"The interval of the saving excludes 0 for: {'; '.join(clear)}."] if clear else []
    lines += [f"It contains 0 at every share for: {'; '.join(unclear)}."] if unclear else []
    return f"{table(header, rows)}\n\n{' '.join(lines)}"


def _decoding(study: Found) -> str:
    """Return the table of methods; heads with their paired difference to lenience at equal acceptance."""
    records = study["decoding"]
    rows = [
        [
            f"`{one['method']}`",
            with_bounds(one, "acceptance_rate"),
            percent(one["quality"]),
            _drop(one),
            "-" if one.get("gain") is None else _bounded(one, "gain"),
        ]
        for one in records
    ]
    header = ("method", "accepted / drafted", study["metric"], "drop from the target", "above lenience")
    note = (
        f"{records[0]['n']:,} test prompts, temperature 1, 5 draft tokens per round; linear heads, trained once, at "
        "strictness s: `same_inputs@s`, `lookahead@s`, `target_after@s`, `counterfactual@s` with both inputs, and "
        "`per_gain@s` priced per token gained. Drop and the last column are in points; the last one is the quality "
        "above that of lenience at equal acceptance, interpolated between the leniences of the table (95% intervals, "
        "paired, clustered by prompt, not corrected for several comparisons):"
    )
    return f"{note}\n\n{table(header, rows)}"


def _drop(record: Found) -> str:
    return "-" if record["quality_drop"] is None else _bounded(record, "quality_drop")


def _bounded(record: Found, name: str) -> str:
    low, high = record[f"{name}_ci"]
    return f"{_points(record[name])} ({_points(low)} to {_points(high)})"


def _points(value: float) -> str:
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text
