"""Render studies of mixture heads on math: their inputs and their weights by kind of token."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.formatting import number, percent, with_bounds
from tools.markdown import prompts, table


_VARIANT = "python -m benchmarks.variants {} math --samples-per-prompt {} --set "
COMMANDS = {
    "controls-math.json": _VARIANT.format("controls", 1) + """'{"max_steps":80,"eval_steps":40,"save_steps":40}'""",
    "features-math.json": _VARIANT.format("features", 3) + """'{"max_steps":80,"eval_steps":40,"save_steps":40}'""",
    "starts-math.json": _VARIANT.format("starts", 3)
    + """'{"max_quality_drop":0.01,"max_steps":160,"eval_steps":40,"save_steps":40}'""",
    "roles-math.json": "python benchmarks/weights_by_role.py",
}
_INTRODUCTIONS = {
    "controls-math.json": "A head without inputs, and one with inputs of other positions",
    "features-math.json": "The head's inputs and architecture",
    "starts-math.json": "The head's initial weight",
}
_HEADINGS = {
    "controls-math.json": "Controls",
    "features-math.json": "Inputs",
    "starts-math.json": "Initial weights",
    "roles-math.json": "Weights by kind of token",
}
Record = Mapping[str, Any]


def studies(folder: Path) -> dict[str, str]:
    """Return the studies that have results, by their headings."""
    made = {name: folder / name for name in COMMANDS if (folder / name).is_file()}
    return {_HEADINGS[name]: _render(name, json.loads(path.read_text())) for name, path in made.items()}


def _render(name: str, found: Mapping[str, Any]) -> str:
    if name == "roles-math.json":
        return _roles(found["roles"], found["n"])
    differences = {difference["minus"]: difference for difference in found["differences"]}
    records = [record for record in found["records"] if record["method"] in {"diversed", *differences}]
    changes = _changes(found["provenance"]["argv"], ", the others trained with")
    words = f"{_INTRODUCTIONS[name]} ({prompts(records)}; `diversed` is the packaged mixture head{changes})"
    return f"{words}:\n\n{_heads(records, differences)}"


def _heads(records: Iterable[Record], differences: Mapping[str, Record]) -> str:
    header = (
        "head",
        "accepted / drafted",
        "quality",
        "above the static curve",
        "acceptance of `diversed` minus its own",
        "quality of `diversed` minus its own",
    )
    rows = (
        [
            f"`{record['method']}`",
            *(with_bounds(record, name) for name in ("acceptance_rate", "quality", "static_gain")),
            *(with_bounds(differences.get(record["method"], {}), name) for name in ("acceptance_rate", "quality")),
        ]
        for record in records
    )
    return table(header, rows)


def _changes(argv: Sequence[str], words: str) -> str:
    """Describe the settings of a study's heads that differ from the packaged head's."""
    return f"{words} `{argv[argv.index('--set') + 1]}`" if "--set" in argv else ""


def _roles(roles: Mapping[str, Mapping[str, float]], num_prompts: int) -> str:
    header = ("token", "mean w", "mean TV(p, q)", "accepted draft tokens", "verified tokens")
    rows = (
        [
            role,
            number(row["mean_weight"]),
            number(row["mean_tv"]),
            percent(row["accepted_share"]),
            f"{row['tokens']:,}",
        ]
        for role, row in roles.items()
    )
    return f"The mixture head of math ({num_prompts:,} prompts):\n\n{table(header, rows)}"
