"""Draw the plots of the documentation from the JSON in `results/`.

python -m tools.draw_plots

Each plot is a PNG in `docs/assets/plots`. Its metadata contains a digest of the results shown, so that a test can
detect outdated plots.
"""

import hashlib
import json
from pathlib import Path

from hf_diversed.evaluation import plots
from hf_diversed.evaluation.curves import Curve, to_curves
from tools.figures import RESULTS


PLOTS = Path(__file__).parent.parent / "docs" / "assets" / "plots"
# The results of each plot of quality against acceptance.
SOURCES = {
    "qwen-coder-mbpp": "real/qwen-coder-mbpp.json",
    "qwen-coder-gsm8k": "real/qwen-coder-gsm8k.json",
}
# Methods without a row in the tables next to the plots.
LEFT_OUT = ("block:lossless", "diversed:results/real/head-mbpp", "diversed:results/real/hidden-head-mbpp")


def curve(path: Path) -> Curve:
    """Return the curve with the most families, of the methods that were measured on all prompts of the first one."""
    records = [record for record in json.loads(path.read_text())["records"] if record["method"] not in LEFT_OUT]
    complete = [record for record in records if record["n"] == records[0]["n"]]
    return max(to_curves(complete, path.stem), key=lambda found: len(found.families))


def draw() -> None:
    """Draw all plots."""
    PLOTS.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        figure = plots.quality_acceptance(curve(RESULTS / source))
        plots.save(figure, PLOTS / f"{name}.png", made_of=digest(RESULTS / source))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    draw()
