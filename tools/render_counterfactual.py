"""Render the studies of heads trained on the costs of single tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_diversed.formatting import percent, with_bounds
from tools.markdown import table
from tools.render_learning import holm


_RUN = "python -m benchmarks.counterfactual"
COMMANDS = {
    "counterfactual-math.json": f"{_RUN} math --draws 3 --samples 1 --heads counterfactual@0.35 counterfactual@0.2 "
    "mlp@0.35 mlp@0.2 same_inputs@0.2",
    "counterfactual-summary.json": f"{_RUN} summary --draws 3 "
    "--lenience 1 0.5 0.3 0.12 1e-4 1e-5 1e-6 1e-7 1e-8 1e-10 --others lossless static:0.5 "
    "--heads counterfactual@0.7 counterfactual@0.6 counterfactual@0.55 counterfactual@0.5 per_gain@0.35 mlp@0.55 "
    "target_after@0.55 lookahead@0.55 same_inputs@0.55",
}
_LENIENCE = "lenience"
_WORDS = {_LENIENCE: "p/q, as lenience: cost", "packaged head": "packaged head, trained on rollouts"}
_CURVE = (
    "An order keeps a share of the rejected tokens of the test labels, or tokens until their gain is a share of what "
    "keeping all of them gains: a kept token gains itself and the draft tokens after it that lossless verification "
    "accepts. The first row is the cost per rejection of lossless decoding, to first order, in points of the task's "
    "score; the other rows are the costs saved against it. R² is the share of the labels' variance that the head "
    "explains on held-out training prompts. Heads are linear and trained on the first draw of the labels, unless the "
    "row differs in that. 95% intervals are clustered by prompt, for the given order, and not corrected for several "
    "comparisons:"
)
PUBLISHED = "real/held-out-costs-gsm8k.json"
_LABELLED = (
    "hf-diversed label --task gsm8k --data-file gsm8k_train_first_6473.jsonl --chat --target qwen-coder-1.5b "
    "--draft qwen-coder-0.5b --num-examples 320 --rejections 4 --continuations 1 --temperature 0 --batch-size 32 "
    "--max-new-tokens 400 --output labels.jsonl"
)
Record = Mapping[str, Any]


def studies(folder: Path) -> dict[str, str]:
    """Return the parts of the studies by their headings; empty without results."""
    paths = [folder / name for name in COMMANDS if (folder / name).is_file()]
    studies = [json.loads(path.read_text()) for path in paths]
    if not studies:
        return {}
    return {
        "Decoding": "\n\n".join(map(_decoding, studies)),
        "First-order costs": "\n\n".join([_CURVE, *map(_curve, studies)]),
        "Labels": _labels(studies),
        **({"A published pair": published(folder)} if (folder / PUBLISHED).is_file() else {}),
    }


def _decoding(study: Record) -> str:
    """Return the table of methods, with their paired difference to lenience at equal acceptance."""
    records, draws = study["decoding"], study["draws"]
    compared = [one for one in records if one.get("gain") is not None]
    adjusted = dict(zip((one["method"] for one in compared), holm([one["gain_p"] for one in compared])))
    rows = [
        [
            f"`{one['method']}`",
            with_bounds(one, "acceptance_rate"),
            percent(one["quality"]),
            "-" if one["quality_drop"] is None else _bounded(one, "quality_drop"),
            *_gain(one, adjusted),
        ]
        for one in records
    ]
    header = ("method", "accepted / drafted", study["metric"], "drop from the target", "above lenience", "p", "draws")
    note = (
        f"**{study['task']}**: {records[0]['n']:,} test prompts, temperature 1, 5 draft tokens per round. "
        "`diversed` and `mixture head` are the packaged heads. Heads trained on token costs have a strictness s: "
        "linear ones `same_inputs@s`, `lookahead@s`, `target_after@s`, `counterfactual@s` with both inputs, and "
        "`per_gain@s` priced per token gained; `mlp@s` has both inputs. "
        f"Each is trained on {draws} draw{'s' * (draws > 1)} of the labels. "
        'Drop and differences are in points. "Above lenience" is the quality above that of lenience at equal '
        "acceptance, interpolated between the leniences of the table, with its 95% interval, paired and clustered by "
        "prompt. p is of no difference, corrected for all rows that have one (Holm). The last column has the "
        "difference of each draw:"
    )
    command = COMMANDS[f"counterfactual-{study['task']}.json"]
    return f"{note}\n\n{table(header, rows)}\n\nMeasured by `{command}`."


def _gain(record: Record, adjusted: Mapping[str, float]) -> list[str]:
    if record["method"] not in adjusted:
        return ["-"] * 3
    p_value, draws = adjusted[record["method"]], record["gain_draws"]
    by_draw = ", ".join(map(_points, draws)) if len(draws) > 1 else "-"
    return [_bounded(record, "gain"), "< 0.001" if p_value < 0.001 else f"{p_value:.3f}", by_draw]


def _curve(study: Record) -> str:
    """Return the cost of lenience's order, and what each other order saves."""
    rows = []
    for order in study["curve"]:
        head = study["heads"].get(order)
        values = "cost" if order == _LENIENCE else "saving"
        rows.append(
            [
                _WORDS.get(order, order),
                "-" if head is None else percent(head["r2"]),
                *(_bounded(point, values) for name in ("curve", "gain_curve") for point in study[name][order]),
            ]
        )
    goals = {"curve": "kept", "gain_curve": "gained"}
    shares = [f"{point['share']:.0%} {goal}" for name, goal in goals.items() for point in study[name][_LENIENCE]]
    return f"**{study['task']}**:\n\n{table(('order', 'R²', *shares), rows)}"


def published(folder: Path) -> str:
    """Return the table of orders on labels of the published pair, by cross-validation."""
    study = json.loads((folder / PUBLISHED).read_text())
    rows = []
    for order, points in study["curve"].items():
        r2, values = study["r2"].get(order), "cost" if order == _LENIENCE else "saving"
        name = "p / max p, as lenience: cost" if order == _LENIENCE else order
        rows.append([name, "-" if r2 is None else percent(r2), *(_bounded(point, values) for point in points)])
    about, shares = study["labels"], [f"{point['share']:.0%} kept" for point in study["curve"][_LENIENCE]]
    note = (
        f"Qwen2.5-Coder 1.5B with 0.5B ([details](real-pair.md)), GSM8K, greedy decoding: {about['labels']} "
        f"rejections of {about['prompts']} completions. Keeping the draft token turns {about['positive']} right "
        f"answers into wrong ones and {about['negative']} wrong ones into right ones; the mean cost is "
        f"{_points(about['mean_cost'])} points. Each head is trained on four fifths of the prompts and orders the "
        "rejections of the others. The first row is the cost per rejection of keeping the tokens that are first in "
        "lenience's order, in points; the other rows are the costs saved against it. 95% intervals are clustered by "
        "prompt, for the given order:"
    )
    measured = (
        f"Measured by `{_LABELLED}`, of which parts 1, 2 and 6 of 10 were run, and `python -m "
        "benchmarks.held_out_costs labels.jsonl`."
    )
    return f"{note}\n\n{table(('order', 'R²', *shares), rows)}\n\n{measured}"


def _labels(studies: list[Record]) -> str:
    rows = [
        [
            study["task"],
            split,
            f"{one['labels']:,}",
            f"{one['prompts']:,}",
            str(one["continuations"]),
            *(_points(one[name]) for name in ("mean_cost", "deviation", "noise")),
            percent((one["noise"] / one["deviation"]) ** 2),
        ]
        for study in studies
        for split, one in study["labels"].items()
    ]
    header = ("task", "split", "labels", "prompts", "continuations", "mean cost", "deviation", "noise", "share")
    note = (
        "Embedded pair, temperature 1; the first draw of the training labels. Costs are in points of the task's "
        "score. Noise is the standard deviation of a label due to the sampled continuations of each branch, and share "
        "its part of the labels' variance. It excludes the variance over residual tokens:"
    )
    return f"{note}\n\n{table(header, rows)}"


def _bounded(record: Record, name: str) -> str:
    low, high = record[f"{name}_ci"]
    return f"{_points(record[name])} ({_points(low)} to {_points(high)})"


def _points(value: float) -> str:
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text
