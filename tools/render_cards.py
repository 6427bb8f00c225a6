"""Write the cards of the embedded pair's heads from their JSON results, with rows of named methods only.

python -m tools.render_cards
"""

import json
from pathlib import Path

from hf_diversed.head import DiversedHeadConfig
from hf_diversed.hub import render_card
from hf_diversed.verifiers import VERIFIERS
from hf_diversed.verifiers.names import PLAIN, base_name
from hf_diversed.zoo.loader import HEADS, MIXTURE


ROOT = Path(__file__).parent.parent
NAMES = {PLAIN, *VERIFIERS}


def cards() -> dict[Path, str]:
    """Return the card of every packaged head that has results, by its path."""
    by_path = {}
    weights, results_of = ROOT / "hf_diversed" / "zoo" / "weights", ROOT / "results"
    for kind, measured, suffix in ((HEADS, results_of, ""), (MIXTURE, results_of / "mixture", "-mixture")):
        for folder in sorted((weights / kind).glob("*/")):
            results = measured / f"{folder.name}.json"
            if results.is_file():
                evaluation = json.loads(results.read_text())
                rows = [row for row in evaluation["records"] if base_name(row["method"]) in NAMES]
                training = json.loads((folder / "provenance.json").read_text())
                config = DiversedHeadConfig.from_pretrained(folder)
                text = render_card(config, {**evaluation, "records": rows}, training)
                by_path[ROOT / "model_cards" / f"embedded-{folder.name}{suffix}" / "README.md"] = text
    return by_path


def main() -> None:
    for path, text in cards().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
