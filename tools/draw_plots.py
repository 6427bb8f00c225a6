"""Draw the plots of the documentation from the JSON in `results/`.

python -m tools.draw_plots

Each plot is a PNG in `docs/assets/plots`. Its metadata contains a digest of the results shown, so that a test can
detect outdated plots.
"""

import hashlib
import json
from pathlib import Path

from hf_diversed.evaluation.plot import save_plot
from tools.figures import MIXTURE_HEAD, RESULTS, TOKEN_HEAD


PLOTS = Path(__file__).parent.parent / "docs" / "assets" / "plots"
# The results of each plot of quality against acceptance.
SOURCES = {name: f"real/{name}.json" for name in ("qwen-coder-scitldr", "qwen-coder-mbpp", "qwen-coder-gsm8k")}
HEADS = {
    f"diversed:{TOKEN_HEAD}": "diversed, token head",
    "diversed:results/real/token-head-mbpp": "diversed, token head",
    "diversed:results/real/token-head-scitldr": "diversed, another token head",
    f"diversed:{MIXTURE_HEAD}": "diversed, mixture head",
}
# Methods without a row in the tables next to the plots.
LEFT_OUT = ("block:lossless", "diversed:results/real/head-mbpp", "diversed:results/real/hidden-head-mbpp")


def draw() -> None:
    """Draw all plots, each of the methods that were measured on all prompts of the first one."""
    for name, source in SOURCES.items():
        records = json.loads((RESULTS / source).read_text())["records"]
        shown = [
            row | {"method": HEADS.get(row["method"], row["method"])}
            for row in records
            if row["method"] not in LEFT_OUT and row["n"] == records[0]["n"]
        ]
        save_plot(shown, PLOTS / f"{name}.png", metadata={"Description": digest(RESULTS / source)})


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    draw()
