"""Write the README's figures from the JSON results. `--check` only says whether they agree.

python tools/render_readme.py [--check]
"""

import json
import sys
from pathlib import Path


ROOT = Path(__file__).parent.parent
TRAINING = ROOT / "hf_diversed" / "zoo" / "weights" / "training.json"
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


def pair() -> str:
    """What the pair is and does, from the record of its training."""
    record = json.loads(TRAINING.read_text())
    held_out, target, draft = record["held_out"], record["training"]["target"], record["training"]["draft"]
    cpu = (target["cpu_seconds"] + draft["cpu_seconds"]) / 60
    sizes = f"Target {target['parameters'] / 1e6:.1f} M parameters, draft {draft['parameters'] / 1e6:.2f} M."
    lines = [
        f"{sizes} Training took {target['seconds'] / 60:.0f} and {draft['seconds'] / 60:.0f} minutes on a two-core "
        f"machine beside other work ({cpu:.0f} minutes of CPU time in all). On {held_out['n']} held-out problems "
        f"at temperature 1, {held_out['num_assistant_tokens']} drafts per round; {held_out['repeated_8grams']:.1%} of "
        "their word 8-grams occur in the training text:",
        "",
        "| method | right answers | accepted / drafted | accepted / verified | tokens per round |",
        "|---|---|---|---|---|",
        f"| target alone | {held_out['target']:.1%} | - | - | 1 |",
        f"| draft alone | {held_out['draft']:.1%} | - | - | - |",
    ]
    for rule, row in held_out["rules"].items():
        lines.append(
            f"| `{rule}` | {row['right']:.1%} | {row['acceptance_rate']:.1%} | {row['verified_acceptance_rate']:.1%} "
            f"| {row['block_efficiency']:.2f} |"
        )
    return "\n".join(lines)


def _spread(spread: dict) -> str:
    low, high = spread["quartiles"]
    return f"{spread['median']:.2f} ({low:.2f} to {high:.2f})"


SECTIONS = {"pair": pair, "speed": speed}


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
