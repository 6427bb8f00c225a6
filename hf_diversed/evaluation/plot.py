"""Plot of evaluation records: quality against acceptance or time, with 95% intervals.

Needs matplotlib (`pip install "hf-diversed[plot]"`). A plot does not depend on the user's matplotlibrc.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.figure import Figure

from hf_diversed.evaluation.table import setting
from hf_diversed.verifiers.names import PLAIN, family


Record = Mapping[str, Any]
# Okabe and Ito's colours, safe for colour blindness; markers also differ, for greyscale print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "oDs^vPX*"  # one more than the colours, so that the next round of colours differs
_LOOK = {
    "figure.figsize": (5.2, 3.8),
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.dpi": 200,
}


@matplotlib.style.context(["default", _LOOK])
def save_plot(
    records: Sequence[Record], path: Path, time: bool = False, metadata: dict[str, str] | None = None
) -> None:
    """Draw quality against acceptance rate into a file.

    Args:
        path: the suffix is the format, as in matplotlib.
        time: draw the seconds per answer in place of the acceptance rate; they have no intervals.
        metadata: of the file, as in `matplotlib.figure.Figure.savefig`.

    Raises:
        ValueError: if no method verified draft tokens.
    """
    figure = draw(records, time)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata=metadata)


def draw(records: Sequence[Record], time: bool = False) -> Figure:
    """Return the plot. Methods that differ only in their last parameter share a colour and a line."""
    field, scale = ("seconds_per_sample", 1) if time else ("acceptance_rate", 100)
    families: dict[str, list[tuple[float, Record]]] = {}
    for record in records:
        name, parameter = family(record["method"])
        if record[field] is not None:
            families.setdefault(name, []).append((parameter or 0.0, record))
    if not families:
        raise ValueError("there is nothing to draw: no method verified draft tokens; evaluate one, such as lossless.")
    figure = Figure()
    axes = figure.add_subplot()
    for (name, members), colour, marker in zip(families.items(), cycle(_COLOURS), cycle(_MARKERS)):
        rows = [row for _, row in sorted(members, key=lambda member: member[0])]
        x, y = [scale * row[field] for row in rows], [100 * row["quality"] for row in rows]
        across, up = None if time else _distances(rows, field), _distances(rows, "quality")
        axes.errorbar(x, y, up, across, fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.5)
        axes.plot(x, y, color=colour, marker=marker, linewidth=1.0, label=name)
        for parameter, row in members if len(members) > 1 else ():
            place = scale * row[field], 100 * row["quality"]
            axes.annotate(f"{parameter:g}", place, (3, 3), textcoords="offset points", fontsize=6, color=colour)
    for row in records if not time else ():
        if row["method"] == PLAIN:
            low, high = row["quality_ci"]
            axes.axhspan(100 * low, 100 * high, color="0.92", zorder=0, linewidth=0)
            axes.axhline(100 * row["quality"], color="black", linewidth=0.8, linestyle="--", label="target alone")
    first = records[0]
    axes.set_title(f"{first['task']}, {first['n']} prompts, {setting(first)}, 95% intervals", fontsize=7, loc="left")
    seconds = f"seconds per answer, batch size {first.get('batch_size')}"
    axes.set_xlabel(seconds if time else "acceptance rate, accepted / drafted (%)")
    axes.set_ylabel(f"{first['metric']} (%)")
    figure.legend(loc="outside upper left", ncols=3, fontsize=7)
    return figure


def _distances(rows: Sequence[Record], name: str) -> list[list[float]]:
    """Return the distances of the 95% bounds below and above a figure, in percent; 0 for points without bounds."""
    bounds = [(row[name], *(row[f"{name}_ci"] or (row[name], row[name]))) for row in rows]
    return [[100 * max(value - low, 0.0) for value, low, _ in bounds], [100 * max(h - v, 0.0) for v, _, h in bounds]]
