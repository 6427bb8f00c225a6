"""Render the README's tables from the JSON results."""

import json

from hf_diversed.formatting import number, with_bounds
from tools import render_pair, render_real
from tools.markdown import prompts, table
from tools.render_results import RESULTS


REAL = RESULTS / "real" / "lookup-scitldr.json"


def first() -> str:
    """Return the gain on the embedded pair, as a table of four methods, and what a trained head adds to it."""
    rows = {record["method"]: record for record in json.loads((RESULTS / "math.json").read_text())["records"]}
    labels = {
        "target": "`target`",
        "lossless": "`lossless`",
        "lenience:0.05": "`lenience:0.05`, untrained",
        "diversed": "`diversed`, a trained head",
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
        f"{prompts([first])}, temperature {first['temperature']:g}, {first['num_assistant_tokens']} draft tokens per "
        "round, 95% intervals clustered by prompt."
    )
    header = ("method", "accepted / drafted", "tokens per target forward", "correct answers")
    return f"{table(header, lines)}\n\n{setting}\n\n{_learning()}"


def _learning() -> str:
    """Return the quality of heads of three seeds, minus that of lenience at the same acceptance."""
    better = []
    for task in ("math", "summary"):
        found = json.loads((RESULTS / f"learning-{task}.json").read_text())["comparisons"][0]
        points, low, high = (100 * value for value in (found["quality"], *found["quality_ci"]))
        better.append(f"{points:.2f} points ({low:.2f} to {high:.2f})")
    return (
        "Lenience alone gives most of this gain. At the same acceptance, heads trained with three seeds score "
        f"{better[0]} higher than lenience on these problems; on summaries, the difference is {better[1]}. "
        "These intervals are not corrected for several comparisons."
    )


def brief() -> str:
    """Return acceptance, quality and speedups on the Qwen2.5-Coder pair, and speedups of prompt lookup on SmolLM2."""
    methods = ("lossless", "lenience:0.3")
    settings = {
        "lookup-scitldr.json": "summaries, prompt lookup",
        "lookup-rewrite.json": "correcting the spelling of a text, prompt lookup",
    }
    rows = [render_pair.speedups(methods)]
    rows += [[words, *render_real.gains(REAL.with_name(name), methods)] for name, words in settings.items()]
    note = (
        "Speedup over the target alone, one CPU thread, eager, batch size 1, median (range) of alternating runs. The "
        "rows with prompt lookup are of SmolLM2-135M-Instruct."
    )
    gains = table(["speedup", *(f"`{name}`" for name in methods)], rows)
    return f"{render_pair.brief()}\n\n{gains}\n\n{note}"
