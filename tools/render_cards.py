"""Write the cards of the packaged and the published heads from their JSON results.

Rows are those of named methods.

python -m tools.render_cards
"""

import json
from pathlib import Path

from hf_diversed.head import DiversedHeadConfig
from hf_diversed.hub import render_card
from hf_diversed.verifiers import VERIFIERS
from hf_diversed.verifiers.names import DIVERSED, PLAIN, base_name
from hf_diversed.zoo.loader import HEADS, MIXTURE
from tools.figures import MIXTURE_HEAD, RESULTS, TOKEN_HEAD


ROOT = Path(__file__).parent.parent
NAMES = {PLAIN, *VERIFIERS}
# The studies of the published heads, and for each head the one with the results of its card.
STUDIES = {
    "temperature 1": "qwen-coder-scitldr",
    "temperature 0.7, top-p 0.8 and top-k 20": "qwen-coder-scitldr-t0.7-k20-p0.8",
    "temperature 0": "qwen-coder-scitldr-t0",
}
PUBLISHED = {TOKEN_HEAD: "qwen-coder-scitldr", MIXTURE_HEAD: "qwen-coder-scitldr-t0"}
# Folders of their pair, and the original weights on the Hub.
ORIGINALS = {
    f"qwen2.5-coder-{size}b-instruct-q4_k_m": f"Qwen/Qwen2.5-Coder-{size}B-Instruct" for size in ("1.5", "0.5")
}
CONVERTED = """The weights were converted from 4-bit GGUF files, which `python -m benchmarks.pair` downloads.
The snippet loads the original weights, so `generate` warns that they are not those of the training.
"""


def cards() -> dict[Path, str]:
    """Return the card of every packaged and published head by its path."""
    by_path = {ROOT / head / "README.md": published_card(head, study) for head, study in PUBLISHED.items()}
    weights = ROOT / "hf_diversed" / "zoo" / "weights"
    for kind, measured, suffix in ((HEADS, RESULTS, ""), (MIXTURE, RESULTS / "mixture", "-mixture")):
        for folder in sorted((weights / kind).glob("*/")):
            evaluation = json.loads((measured / f"{folder.name}.json").read_text())
            path = ROOT / "model_cards" / f"embedded-{folder.name}{suffix}" / "README.md"
            by_path[path] = card(folder, evaluation, evaluation["records"])
    return by_path


def published_card(head: str, name: str) -> str:
    """Return the card of a published head, whose snippet loads the original weights from the Hub."""
    study = read_study(name)
    own = f"{DIVERSED}:{head}"
    by_acceptance = sorted(study["records"], key=lambda row: row["acceptance_rate"] or 0.0)
    others = [row for row in by_acceptance if base_name(row["method"]) != DIVERSED]
    rows = [*others, *(row | {"method": DIVERSED} for row in study["records"] if row["method"] == own)]
    source = {"evaluation": study["provenance"]["evaluations"][0]}
    text = card(ROOT / head, study | {"provenance": source}, rows, source=head)
    for converted, original in ORIGINALS.items():
        text = text.replace(f'"{converted}"', f'"{original}"')
    elsewhere = (f"{drop(own, other)} points at {at}" for at, other in STUDIES.items() if other != name)
    last = len(study["provenance"]["evaluations"]) - 1
    text = text.replace(
        "seed 0.\n",
        f"float32 on a CPU, seeds 0 to {last} for equal parts of the prompts. ROUGE-1 is {drop(own, name)} points "
        f"below exact decoding, the mean of `target` and `lossless`; {'; '.join(elsewhere)}.\n",
    )
    return text.replace("## The pair\n", f"## The pair\n\n{CONVERTED}")


def read_study(name: str) -> dict:
    return json.loads((RESULTS / "real" / f"{name}.json").read_text())


def drop(method: str, study: str) -> str:
    """Return how many points of ROUGE-1 a method is below exact decoding, with its interval."""
    pair = (method, "target, lossless")
    (found,) = (row for row in read_study(study)["comparisons"] if (row["method"], row["minus"]) == pair)
    value, high, low = (-100 * each for each in (found["rouge1"], *found["rouge1_ci"]))
    return f"{value:.1f} ({low:.1f} to {high:.1f})"


def card(folder: Path, evaluation: dict, rows: list[dict], source: str | None = None) -> str:
    """Return the card of the head in a folder, with the rows of named methods."""
    rows = [row for row in rows if base_name(row["method"]) in NAMES]
    training = json.loads((folder / "provenance.json").read_text())
    config = DiversedHeadConfig.from_pretrained(folder)
    return render_card(config, {**evaluation, "records": rows}, training, source=source)


def main() -> None:
    for path, text in cards().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
