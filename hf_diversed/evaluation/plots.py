"""Draw figures of evaluation results: quality against acceptance.

Needs matplotlib (`pip install "hf-diversed[plot]"`). A figure depends only on its records, not on the time, the user's
matplotlibrc or pyplot.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle, product
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from hf_diversed.evaluation.curves import Curve, Record, parameter, to_curves
from hf_diversed.evaluation.frontier import STATIC
from hf_diversed.method_names import DIVERSED, MethodName


_METADATA: dict[str, dict] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
FORMATS = tuple(_METADATA)

# Okabe and Ito's colours, safe for colour blindness; markers and dashes also differ, for greyscale print.
_STYLES = {
    STATIC: ("#0072B2", "o", "-"),
    DIVERSED: ("#D55E00", "D", "-"),
    "lenience": ("#009E73", "s", "--"),
    "spec_cascade:token_v3": ("#CC79A7", "^", ":"),
}
_OTHERS = (("#56B4E9", "v", "-."), ("#E69F00", "P", "--"), ("#000000", "X", ":"), ("#999999", "h", "-."))
_NAMES = {STATIC: "static (w, 1: lossless)", DIVERSED: "DIVERSED (strictness)", "lenience": "lenience"}
_MM = 1 / 25.4
_LOOK = {
    "figure.figsize": (110 * _MM, 82 * _MM),
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "axes.titlesize": 7,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "savefig.dpi": 200,
    "svg.hashsalt": "hf_diversed",
}


@matplotlib.style.context(["default", _LOOK])
def quality_acceptance(curve: Curve) -> Figure:
    """Quality against acceptance rate; lines between static points are those of `static_gain`, see `summarize`."""
    figure = Figure()
    axes = figure.add_subplot()
    axes.set_title(_title(curve))
    points = []
    for name, (colour, marker, line) in _styles(curve):
        records = curve.families[name]
        if name == STATIC:
            records = sorted(records, key=lambda record: record["acceptance_rate"])
        x, y = _percent(records, "acceptance_rate"), _percent(records, "quality")
        across, up = _distances(records, "acceptance_rate"), _distances(records, "quality")
        axes.errorbar(x, y, up, across, fmt="none", ecolor=colour, elinewidth=0.6, alpha=0.5, label="_")
        axes.plot(x, y, color=colour, marker=marker, linestyle=line, label=_label(name))
        points += _named(records, x, y, colour)
    if curve.plain is not None:
        quality = 100 * curve.plain["quality"]
        if curve.plain["quality_ci"] is not None:
            low, high = curve.plain["quality_ci"]
            axes.axhspan(100 * low, 100 * high, color="0.92", zorder=0, linewidth=0)
        axes.axhline(quality, color="black", linewidth=0.8, linestyle=(0, (6, 3)), label="target alone")
    axes.set_xlabel("acceptance rate, accepted / drafted (%)")
    axes.set_ylabel(f"{_first(curve)['metric']} (%)")
    return _finish(figure, axes, points)


def check_format(path: Path) -> str:
    """Return the format of a file by its suffix. Raises ValueError for a format other than `FORMATS`."""
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"figures are written as {', '.join(FORMATS)}, got {path.name!r}.")
    return kind


def save_quality(records: Sequence[Record], path: Path) -> list[Path]:
    """Draw quality against acceptance rate, one figure per setting, and return the files that were written.

    The suffix of `path` is the format. Several settings have one file each, named after `path`, the task, the
    temperature and the number of draft tokens.

    Raises:
        ValueError: for another format, or if no method verified draft tokens.
    """
    check_format(path)
    curves = [curve for curve in to_curves(records, path.stem) if curve.families]
    if not curves:
        raise ValueError("there is nothing to draw: no method verified draft tokens; evaluate one, such as lossless.")
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for curve in curves:
        setting = f"{curve.task}-t{curve.temperature:g}-g{curve.num_assistant_tokens}"
        file = path.with_stem(f"{path.stem}-{setting}") if len(curves) > 1 else path
        save(quality_acceptance(curve), file)
        written.append(file)
    return written


@matplotlib.style.context(["default", _LOOK])
def save(figure: Figure, path: Path, made_of: str | None = None) -> None:
    """Write a figure in the format of the file's suffix; equal figures give equal bytes.

    Args:
        made_of: text for the file's metadata ("Description"; "Subject" of a PDF).

    Raises:
        ValueError: for a format other than `FORMATS`.
    """
    kind = check_format(path)
    metadata = dict(_METADATA[kind])
    if made_of is not None:
        metadata["Subject" if kind == "pdf" else "Description"] = made_of
    figure.savefig(path, metadata=metadata)


def _title(curve: Curve) -> str:
    first = _first(curve)
    samples = f" x {first['samples_per_prompt']} samples" if first["samples_per_prompt"] > 1 else ""
    return (
        f"{curve.task}, {first['n']} prompts{samples}, temperature {curve.temperature:g}, "
        f"{curve.num_assistant_tokens} draft tokens, 95% intervals"
    )


def _first(curve: Curve) -> Record:
    """Return any record of a curve: the fields of its setting are the same in all."""
    return next(iter(curve.families.values()))[0]


def _styles(curve: Curve) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield families with colour, marker and line: fixed for known ones, cycled for others. Static is drawn first."""
    others = cycle(_OTHERS)
    for name in sorted(curve.families, key=lambda name: [*_STYLES, name].index(name)):
        yield name, _STYLES.get(name) or next(others)


def _label(name: str) -> str:
    parsed = MethodName.parse(name)
    if parsed.name == DIVERSED and parsed.parameters:
        return f"DIVERSED, {Path(parsed.parameters).name}"
    if parsed.name == "spec_cascade":
        return f"SpecCascade {parsed.parameters or ''}".rstrip()
    return _NAMES.get(name, name)


def _percent(records: Sequence[Record], name: str) -> list[float]:
    return [100 * record[name] for record in records]


def _distances(records: Sequence[Record], name: str) -> list[list[float]]:
    """Return the distances of the 95% bounds below and above a figure, in percent; 0 for points without bounds."""
    bounds = [(record[name], *(record[f"{name}_ci"] or (record[name], record[name]))) for record in records]
    return [[100 * max(value - low, 0.0) for value, low, _ in bounds], [100 * max(h - v, 0.0) for v, _, h in bounds]]


def _named(records: Sequence[Record], x: Sequence[float], y: Sequence[float], colour: str) -> list[tuple]:
    """Return points with their parameter as text and a colour, for `_finish`; the text is empty without parameter."""
    values = [parameter(record) for record in records]
    return [(*place, "" if value is None else f"{value:g}", colour) for *place, value in zip(x, y, values)]


def _finish(figure: Figure, axes: Axes, points: Sequence[tuple]) -> Figure:
    """Add the legend above the axes, and a label beside each point where it covers no point and no other label."""
    handles, labels = axes.get_legend_handles_labels()
    renderer = FigureCanvasAgg(figure).get_renderer()
    for ncols in (3, 2, 1):
        legend = figure.legend(
            handles, labels, loc="outside upper left", ncols=ncols, columnspacing=1.2, handlelength=2.6
        )
        figure.draw_without_rendering()  # the layout determines where the points lie
        if legend.get_window_extent(renderer).width <= figure.bbox.width or ncols == 1:
            break
        legend.remove()
    taken = []
    for x, y, *_ in points:
        across, up = axes.transData.transform((x, y))
        taken.append(Bbox([[across - 2, up - 2], [across + 2, up + 2]]))
    for x, y, words, colour in points:
        for right, up in product((3, -3, 0), (3, -3, 9, -9)) if words else ():
            text = axes.annotate(words, (x, y), (right, up), textcoords="offset points", fontsize=6, color=colour)
            text.set(ha={3: "left", -3: "right", 0: "center"}[right], va="bottom" if up > 0 else "top")
            text.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
            text.set_in_layout(False)
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()
    return figure
