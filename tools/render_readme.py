"""Write the README's figures from the JSON results. `--check` only says whether they agree.

python tools/render_readme.py [--check]
"""

import json
import sys
from pathlib import Path


ROOT = Path(__file__).parent.parent
SPEED = ROOT / "results" / "against_upstream.json"


def speed() -> str:
    """Ratios against upstream's loop, with the middle half of the repeats."""
    record = json.loads(SPEED.read_text())
    lines = ["| embedded pair | ours / upstream |", "|---|---|"]
    lines.append(f"| cost of a round, batch 1 | {_spread(record['round_cost_ratio'])} |")
    for size, spread in record["throughput_ratio_by_batch"].items():
        lines.append(f"| tokens per second, batch {size} against upstream's batch 1 | {_spread(spread)} |")
    source = record["provenance"]
    versions = source["versions"]
    setting = (
        f"Median (quartiles) of {record['repeats']} alternating runs in one process; w = {record['weight']}, "
        f"{record['num_assistant_tokens']} drafts per round, {record['max_new_tokens']} new tokens, acceptance rate "
        f"{record['acceptance_rate']:.0%}; "
        f"{source['device']}, {source['threads']} threads, torch {versions['torch']}, "
        f"transformers {versions['transformers']}."
    )
    return "\n".join([*lines, "", setting])


def _spread(spread: dict) -> str:
    low, high = spread["quartiles"]
    return f"{spread['median']:.2f} ({low:.2f} to {high:.2f})"


SECTIONS = {"speed": speed}


def render(text: str) -> str:
    """The README with every marked section replaced."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{section()}\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> int:
    readme = ROOT / "README.md"
    rendered = render(readme.read_text())
    if "--check" in sys.argv[1:]:
        return int(rendered != readme.read_text())
    readme.write_text(rendered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
