"""Render the documentation's figures on serving with vLLM from `results/serving.json`; see benchmarks/serving.py."""

import json
from collections.abc import Mapping
from typing import Any

from hf_diversed.formatting import percent, with_bounds
from tools.markdown import prompts, table
from tools.render_results import RESULTS


Record = Mapping[str, Any]


def _part(name: str) -> Record:
    return json.loads((RESULTS / "serving.json").read_text())[name]


def acceptance() -> str:
    """Return a table of acceptance and quality in vLLM and with `generate` on the same problems, by verifier."""
    part = _part("acceptance")
    rows = (
        [
            f"`{record['verifier']}`",
            with_bounds(record, "acceptance_rate"),
            with_bounds(record, "generate_acceptance_rate"),
            _points(record, "difference"),
            _points(record, "like_for_like_difference"),
            with_bounds(record, "quality"),
            with_bounds(record, "generate_quality"),
        ]
        for record in part["records"]
    )
    header = (
        "verifier",
        "accepted in vLLM",
        "by `generate`",
        "difference, points",
        "like for like",
        "right in vLLM",
        "right by `generate`",
    )
    return f"{table(header, rows)}\n\nProblems of the embedded {part['task']} task: {prompts([part])}, temperature 1."


def _points(record: Record, name: str) -> str:
    """Return a difference of rates with its bounds, in percentage points."""
    if record.get(name) is None:
        return "-"
    value, low, high = (100.0 * figure for figure in (record[name], *record[f"{name}_ci"]))
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def cost() -> str:
    """Return the table of the plugin's cost per round, by batch size."""
    part = _part("cost")
    rows = (
        [
            record["verifier"],
            str(record["batch_size"]),
            f"{record['ms_without']:.1f}",
            f"{record['ms_with']:.1f}",
            with_bounds(record, "added"),
        ]
        for record in part["records"]
    )
    header = ("verifier", "requests at once", "CPU ms per round without the plugin", "with it", "added")
    return f"{table(header, rows)}\n\n{part['steps']:,} rounds each."


def load() -> str:
    """Return the tables of outcomes of requests under load and of acceptance by strictness."""
    part = _part("load")
    strictnesses = [record["strictness"] for record in part["records"][0]["by_strictness"]]
    names = ("answered", "refused", "cancelled", "error", "lost")
    rows = (
        [
            record["phase"],
            *(str(record[name]) for name in names),
            *(with_bounds(one, "acceptance_rate") for one in record["by_strictness"]),
        ]
        for record in part["records"]
    )
    accepted = [f"accepted at strictness {strictness:g}" for strictness in strictnesses]
    header = ("", "answered", "HTTP 400", "cancelled", "ended with an error", "lost", *accepted)
    return f"{table(header, rows)}\n\n{part['requests']:,} requests at once in each line."


def eagle3() -> str:
    """Return a table of the EAGLE-3 head for the embedded target (`embedded/eagle3.py`)."""
    found = json.loads((RESULTS / "eagle3.json").read_text())
    header = [f"draft token {number}" for number in range(1, len(found["accepted"]) + 1)]
    words = (
        "Mean probability under the target of the head's likeliest token, which is the acceptance of one-hot draft "
        f"tokens in lossless decoding, on held-out text; {found['steps']} updates. Measured by "
        "`python -m embedded.eagle3 --output build/eagle3`."
    )
    return f"{table(header, [list(map(percent, found['accepted']))])}\n\n{words}"


SECTIONS = {"serving-acceptance": acceptance, "serving-cost": cost, "serving-load": load}
