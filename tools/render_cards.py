"""Write the cards of the embedded pair's heads from their JSON results. `--check` only says whether they agree.

python -m tools.render_cards [--check]
"""

import json
import sys
from pathlib import Path

from hf_diversed.head import DiversedHeadConfig
from hf_diversed.hub import render_card


ROOT = Path(__file__).parent.parent


def cards() -> dict[Path, str]:
    """The card of every packaged head that has results, by its file."""
    found = {}
    for folder in sorted((ROOT / "hf_diversed" / "zoo" / "weights" / "heads").glob("*/")):
        results = ROOT / "results" / "heads" / f"{folder.name}.json"
        if results.is_file():
            found[ROOT / "model_cards" / f"embedded-{folder.name}" / "README.md"] = render_card(
                DiversedHeadConfig.from_pretrained(folder),
                evaluation=json.loads(results.read_text()),
                training=json.loads((folder / "provenance.json").read_text()),
            )
    return found


def differing() -> list[Path]:
    """Cards that are missing, out of date, or of a head that is gone."""
    expected = cards()
    present = {path: path.read_text() for path in (ROOT / "model_cards").glob("embedded-*/README.md")}
    return sorted(path for path in expected.keys() | present.keys() if expected.get(path) != present.get(path))


def main() -> int:
    if "--check" in sys.argv[1:]:
        paths = differing()
        for path in paths:
            print(f"{path.relative_to(ROOT)} differs from the results; run python -m tools.render_cards")
        return int(bool(paths))
    for path, text in cards().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
