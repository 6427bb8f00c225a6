"""Draw the plots of the documentation from the JSON in `results/`.

python -m tools.draw_plots

Each plot is a PNG in `docs/assets/plots`. Its metadata contains a digest of the results shown, so that a test can
detect outdated plots.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from hf_diversed.evaluation import plots as figures
from hf_diversed.evaluation.curves import Curve, read_records, to_curves
from tools.render_pair import PREFIX, has_curve, same_prompts
from tools.render_results import RESULTS, read_asked


ROOT = Path(__file__).parent.parent
PLOTS = ROOT / "docs" / "assets" / "plots"
TABLES = ("summary.json", "code.json")  # also contain methods of further studies, which the plots omit


class Plot(NamedTuple):
    """A plot: its results, relative to `results/`, the function that reads its curve, and the one that draws it."""

    source: str
    read: Callable[[Path], Curve]
    kind: str


def largest(path: Path) -> Curve:
    """Return the curve with the most families: curves of other draft lengths have static points only."""
    read = read_asked if path.name in TABLES else same_prompts if path.name.startswith(PREFIX) else read_records
    records = read(path)
    return max(to_curves(records, path.stem), key=lambda curve: len(curve.families))


def timed(path: Path) -> Curve:
    """Return the methods of `benchmarks/real.py` with the seconds per token of its timed runs at batch size 1."""
    record = json.loads(path.read_text())["records"][0]
    methods = record["seconds"][0]["methods"]
    rows = []
    for row in record["quality"]:
        if row["method"] in methods:
            seconds = median(turn["seconds"] / turn["tokens"] for turn in methods[row["method"]]["turns"])
            rows.append(row | {"method": row["method"].partition(":build")[0], "seconds_per_sample": seconds})
    (curve,) = to_curves(rows, path.stem)
    return curve


def plots(results: Path = RESULTS) -> dict[str, Plot]:
    """Return the plots whose results exist, by name."""
    sources = {"math": "frontier-math.json", "summary": "summary.json", "code": "code.json"}
    sources |= {path.stem: f"real/{path.name}" for path in sorted((results / "real").glob("qwen-coder-*.json"))}
    by_name = {}
    for name, source in sources.items():
        path = results / source
        if not path.is_file() or name.startswith(("qwen-coder-speed", "qwen-coder-specbench")):
            continue
        if has_curve(path) if name.startswith(PREFIX) else len(largest(path).families) >= 2:
            by_name[f"frontier-{name}"] = Plot(source, largest, "quality_acceptance")
            if name not in ("summary", "code"):
                by_name[f"positions-{name}"] = Plot(source, largest, "acceptance_position")
    if (results / "real/lookup-scitldr.json").is_file():
        by_name["speed-smollm2"] = Plot("real/lookup-scitldr.json", timed, "speed_acceptance")
    return by_name


def draw(folder: Path = PLOTS, results: Path = RESULTS) -> None:
    """Draw all plots whose results exist."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in plots(results).items():
        figure = getattr(figures, plot.kind)(plot.read(results / plot.source))
        figures.save(figure, folder / f"{name}.png", made_of=_digest(results / plot.source))


def outdated(folder: Path = PLOTS, results: Path = RESULTS) -> list[str]:
    """Return the plots that are missing, outdated, or not in `plots`."""
    current: Mapping[str, Plot] = plots(results)
    drawn = {path.stem: path.read_bytes() for path in folder.glob("*.png")}
    stale = [
        name for name, plot in current.items() if _digest(results / plot.source).encode() not in drawn.get(name, b"")
    ]
    return sorted([*stale, *(drawn.keys() - current.keys())])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    draw()
