"""Render tables of results for the documentation from the JSON files in `results/`.

`python -m tools.render_results` prints the commands that measure missing results.
"""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.evaluation.curves import read_records, to_curves
from hf_diversed.formatting import percent, with_bounds
from hf_diversed.harness.methods import DIVERSED, MethodName
from tools import render_counterfactual, render_learning, render_studies
from tools.markdown import folded, table


RESULTS = Path(__file__).parent.parent / "results"
TASKS = ("math", "summary", "code")

_RUN = "hf-diversed evaluate --num-examples {} --batch-size 250"
_STATIC = "static:0.7,static:0.5,static:0.3,static:0.1"
_METHODS = f"--methods target,lossless,{_STATIC},{{}},{render_learning.CASCADE},diversed"
_SWEEP = f"{_RUN.format(1000)} --task math --methods target,lossless,static:0.5,diversed"
# The command for each file.
COMMANDS = {
    "math.json": f"{_RUN.format(1000)} --task math --samples-per-prompt 2 {_METHODS.format('lenience:0.05')}",
    "summary.json": f"{_RUN.format(1000)} --task summary --samples-per-prompt 3 {_METHODS.format('lenience:0.3')}",
    "code.json": f"{_RUN.format(500)} --task code --samples-per-prompt 1 {_METHODS.format('lenience:0.03')} "
    "--allow-code-execution",
    "frontier-math.json": "hf-diversed evaluate --task math --frontier static,diversed,lenience,spec_cascade "
    "--num-examples 500 --batch-size 250",
    "math-t0.json": f"{_SWEEP} --temperature 0",
    "math-t0.1.json": f"{_SWEEP} --temperature 0.1",
    "math-g3.json": f"{_SWEEP} --num-assistant-tokens 3",
    "math-g7.json": f"{_SWEEP} --num-assistant-tokens 7",
    "transfer.json": "python benchmarks/transfer.py --batch-size 250",
    **render_learning.COMMANDS,
    **render_studies.COMMANDS,
    **render_counterfactual.COMMANDS,
}
Record = Mapping[str, Any]


def tasks(folder: Path = RESULTS) -> dict[str, str]:
    """Return tables of the other studies of the embedded pair, under their headings."""
    studied = [f"{task}.json" for task in TASKS]
    studied += [*render_learning.COMMANDS, *render_studies.COMMANDS, *render_counterfactual.COMMANDS]
    return {
        "The frontier": _frontier(folder),
        "Heads on other tasks": _transfer(folder),
        "Temperatures and draft lengths": "\n\n".join(_sweeps(folder)),
        "Other studies": "\n\n".join(_how_to_make(name) for name in studied if not (folder / name).is_file()),
    }


def missing(folder: Path = RESULTS) -> list[str]:
    """Return a sentence with the command for every missing file."""
    return [_how_to_make(name) for name in COMMANDS if not (folder / name).is_file()]


def read_asked(path: Path) -> list[dict[str, Any]]:
    """Return a task's records of the methods in its command; the file may contain methods of other studies."""
    words = shlex.split(COMMANDS[path.name])
    methods = words[words.index("--methods") + 1].split(",")
    return [record for record in read_records(path) if record["method"] in methods]


def pivot(records: Iterable[Record], row: str, column: str, head: str) -> str:
    """Return a Markdown table of "accepted / quality", one cell per record, in the order of the records.

    Args:
        row, column: fields of a record.
        head: header of the first column.

    Raises:
        ValueError: if two records share a cell.
    """
    cells: dict[tuple, str] = {}
    for record in records:
        key = (record[row], record[column])
        if key in cells:
            raise ValueError(f"there must be one record for {row} {key[0]!r} and {column} {key[1]!r}, got two.")
        cells[key] = f"{percent(record['acceptance_rate'])} / {percent(record['quality'])}"
    rows, columns = (list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1))
    return table(
        (head, *(_plain(value) for value in columns)),
        ([f"`{_plain(name)}`", *(cells.get((name, value), "") for value in columns)] for name in rows),
    )


def _frontier(folder: Path) -> str:
    """Return plots of each task, and quality above the static curve by strictness and for verifiers without a head."""
    records, gaps = _read(folder, ["frontier-math.json"])
    if gaps:
        return gaps[0]
    front = max(to_curves(records, "frontier-math"), key=lambda curve: len(curve.families))
    heads = [name for name in front.families if MethodName.parse(name).name == DIVERSED]
    settings = [record for name in heads for record in front.families[name]]
    others = [record for record in records if record.get("static_gain") is not None and record not in settings]
    above = [record for record in settings if (record.get("static_gain_ci") or (-1.0,))[0] > 0]
    pictures = [f"![Quality against acceptance on {task}](assets/plots/frontier-{task}.png)" for task in TASKS]
    parts = [
        *pictures,
        f"On {front.task} ({_samples(settings[0] if settings else records[0])} samples), {len(above)} of "
        f"{len(settings)} strictness settings of DIVERSED have a lower 95% bound above the interpolated static curve.",
    ]
    if above or others:
        figures = ("acceptance_rate", "quality", "static_gain")
        rows = (
            [f"`{record['method']}`", *(with_bounds(record, name) for name in figures)] for record in [*above, *others]
        )
        found = table(("method", "accepted / drafted", "quality", "above the static curve"), rows)
        parts.append(folded(f"The points on {front.task}", found))
    parts.append("![Accepted draft tokens by position on math](assets/plots/positions-math.png)")
    return "\n\n".join(parts)


def _transfer(folder: Path) -> str:
    """Return a table of heads by the task they were trained on and the task they are used on."""
    records, gaps = _read(folder, ["transfer.json"])
    if gaps:
        return gaps[0]
    note = f"Mixture heads on their own and on other tasks (accepted / quality, n = {_samples(records[0])})."
    note = f"{note} {_widest(records)}"
    return "\n\n".join([note, pivot(records, "trained_on", "tested_on", "trained on, tested on:")])


def _sweeps(folder: Path) -> list[str]:
    """Return tables by temperature and draft length on math; the main run is one column of each."""
    parts = []
    for column, files, words in (
        ("temperature", ("math-t0.json", "math-t0.1.json", "math.json"), "Temperature"),
        ("num_assistant_tokens", ("math-g3.json", "math.json", "math-g7.json"), "Draft tokens per round"),
    ):
        records, gaps = _read(folder, files)
        if len({record[column] for record in records}) > 1:  # otherwise only the main run exists
            note = f"{words} on math (accepted / quality), with the head trained at temperature 1."
            parts.append("\n\n".join([f"{note} {_widest(records)}", pivot(records, "method", column, "method")]))
        parts += [gap for gap in gaps if gap != _how_to_make("math.json")]  # already reported above
    return parts


def _read(folder: Path, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of existing files, and a sentence for each missing file."""
    existing = [name for name in names if (folder / name).is_file()]
    records = [record for name in existing for record in read_records(folder / name)]
    return records, [_how_to_make(name) for name in names if name not in existing]


def _how_to_make(name: str) -> str:
    return f"Not measured yet: `{COMMANDS[name]} --output results/{name}`."


def _samples(record: Record) -> str:
    return f"{record['n'] * record['samples_per_prompt']:,}"


def _widest(records: Sequence[Record]) -> str:
    """Return a sentence with the largest half-width of the confidence bounds, for tables that do not show them."""
    widths = {}
    for name in ("acceptance_rate", "quality"):
        bounds = [record[f"{name}_ci"] for record in records if record[f"{name}_ci"] is not None]
        widths[name] = max((100 * (high - low) / 2 for low, high in bounds), default=0.0)
    return (
        f"95% intervals, clustered by prompt, are at most {widths['acceptance_rate']:.1f} (accepted) and "
        f"{widths['quality']:.1f} (quality) points wide to either side."
    )


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def main() -> int:
    for sentence in missing():
        print(sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
