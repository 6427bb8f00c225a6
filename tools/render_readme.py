"""Write the README's figures from the JSON results. `--check` only says whether they agree.

python -m tools.render_readme [--check]
"""

import json
import sys
from pathlib import Path

from hf_diversed.formatting import number, with_bounds
from tools import render_real
from tools.markdown import prompts, table
from tools.render_results import RESULTS


README = Path(__file__).parent.parent / "README.md"
REAL = RESULTS / "real" / "lookup-scitldr.json"


def first() -> str:
    """What relaxing gains, in four lines, and what a head adds to it, for who reads nothing else."""
    rows = {record["method"]: record for record in json.loads((RESULTS / "math.json").read_text())["records"]}
    labels = {
        "target": "target alone",
        "lossless": "`lossless`",
        "lenience:0.05": "`lenience:0.05`, nothing trained",
        "diversed": "a trained head that sees the drafted token",
    }
    lines = (
        [
            label,
            with_bounds(rows[name], "acceptance_rate"),
            number(rows[name]["block_efficiency"]),
            with_bounds(rows[name], "quality"),
        ]
        for name, label in labels.items()
    )
    first = rows["lossless"]
    setting = (
        f"{prompts([first])}, temperature {first['temperature']:g}, {first['num_assistant_tokens']} drafts per round, "
        "95% bounds clustered by prompt."
    )
    header = ("rule", "drafts accepted", "tokens per target pass", "right answers")
    return f"{table(header, lines)}\n\n{setting}\n\n{_learning()}"


def _learning() -> str:
    """By how many points heads of three seeds are better than the lenience that accepts as much."""
    better = []
    for task in ("math", "summary"):
        found = json.loads((RESULTS / f"learning-{task}.json").read_text())["comparisons"][0]
        points, low, high = (100 * value for value in (found["quality"], *found["quality_ci"]))
        better.append(f"{points:.2f} points ({low:.2f} to {high:.2f})")
    return (
        "Lenience is most of that. Heads of three seeds, held against the lenience that accepts as much, score better "
        f"by {better[0]} on these problems, and by {better[1]} on summaries."
    )


def real() -> str:
    """What relaxing gains on a model of others."""
    rules = ("lossless", "lenience:0.3")
    made, copied = (
        "`lossless` comes to {} and `lenience:0.3` to {}".format(*render_real.gains(REAL.with_name(name), rules))
        for name in ("draft-scitldr.json", "lookup-rewrite.json")
    )
    layers = len(json.loads(REAL.with_name("draft-scitldr.json").read_text())["draft"]["layers"])
    return (
        f"{render_real.brief(REAL)} With a draft made of {layers} of its own layers, {made}; where the answer repeats "
        f"the prompt, its spelling mended, {copied}."
    )


SECTIONS = {"real": real, "first": first}


def render(text: str) -> str:
    """The README with its tables as the results have them now."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- begin:{name} -->", f"<!-- end:{name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{section()}\n{end}{rest.split(end, 1)[1]}"
    return text


def main() -> int:
    rendered = render(README.read_text())
    if "--check" in sys.argv[1:]:
        return int(rendered != README.read_text())
    README.write_text(rendered)
    return 0


if __name__ == "__main__":
    sys.exit(main())
