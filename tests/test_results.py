"""The committed results: the records read from them, and the tables and plots made of the records."""

import json
import re

import numpy as np
import pytest

from benchmarks import pair as pair_study
from hf_diversed.evaluation import read_results
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS
from tools import draw_figures, draw_plots
from tools.figures import RESULTS, _counted, over_target
from tools.tables import brief


MEASURING = RESULTS.parent / "docs" / "measuring.md"
FIGURES = ("n", "acceptance_rate", "acceptance_rate_ci", "block_efficiency", "mean_tokens", "mean_rounds")
FIGURES += ("quality", "quality_ci", "quality_drop", "quality_drop_ci", "prompts_better", "prompts_worse")


def test_bounds_of_one_turn_are_paired_by_batch():
    """Catches a mean of ratios, and batches of the target that are drawn apart from those of the method."""
    target = {"seconds": [1.0, 2.0, 30.0], "tokens": [10, 20, 300]}
    halved = {"seconds": [0.5, 1.0, 15.0], "tokens": [10, 20, 300]}
    assert over_target([halved], [target]) == {"tokens/s": (2.0, 2.0, 2.0), "speedup": (2.0, 2.0, 2.0)}
    uneven = {"seconds": [1.0, 1.0, 15.0], "tokens": [20, 20, 300]}
    found = over_target([uneven], [target])
    assert found["speedup"] == pytest.approx((33 / 17, 1.0, 2.0))
    assert found["tokens/s"][0] == pytest.approx(340 / 17 / 10)


def test_counted_speeds_are_of_all_tasks():
    """Catches the best constant number of a single task, and means of ratios."""
    setting = {"verifier": "lossless", "temperature": 0.0, "n": 2}
    counts = {
        "math": {"constant 1": (10, 5, 5), "constant 4": (10, 2, 8), "confidence 0.5": (10, 4, 8)},
        "code": {"constant 1": (50, 40, 40), "constant 4": (50, 10, 40), "confidence 0.5": (50, 10, 20)},
    }
    rows = [
        setting | {"task": task, "method": method} | dict(zip(("tokens", "target", "draft"), found))
        for task, methods in counts.items()
        for method, found in methods.items()
    ]
    found = {figure.method: figure for figure in _counted("study", {"records": rows})}
    assert found["best"].value == 4
    assert found["confidence"].value == pytest.approx((60 / (14 + 14)) / (60 / (12 + 24)))
    assert (found["confidence"].task, found["confidence"].n) == ("lossless, greedy", 4)


@pytest.mark.parametrize("task", ["math", "summary", "code"])
@pytest.mark.parametrize(
    ("kind", "logs"), [(HEADS, RESULTS / "training"), (MIXTURE, RESULTS / "mixture" / "training")]
)
def test_packaged_heads_are_what_their_runs_chose(kind, logs, task):
    """Catches a manually selected head, and a log of another run."""
    paths = WEIGHTS / kind / task / "provenance.json", logs / f"{task}.json"
    made, log = (json.loads(path.read_text()) for path in paths)
    assert made["step"] == log["best_global_step"]
    assert made["training"]["max_steps"] == log["global_step"]
    chosen = next(line for line in log["log_history"] if line["step"] == made["step"] and "eval_objective" in line)
    assert made["validation"]["objective"] == chosen["eval_objective"] == log["best_metric"]


STUDIES = [
    ("mbpp", "qwen-coder-mbpp", 2),
    ("gsm8k", "qwen-coder-gsm8k", 2),
    ("gsm8k-t0", "qwen-coder-gsm8k-t0", 3),
    ("humaneval-t0", "qwen-coder-humaneval-t0", 1),
    ("mbpp-t0", "qwen-coder-mbpp-t0", 5),
    ("mbpp-t0.7-k20-p0.8", "qwen-coder-mbpp-t0.7-k20-p0.8", 5),
    ("humaneval-t0.7-k20-p0.8", "qwen-coder-humaneval-t0.7-k20-p0.8", 1),
    ("humaneval-t0.7-k20-p0.8-second", "lossless-humaneval", 2),
    ("humaneval-t0.7-k20-p0.8-float32", "lossless-humaneval-float32", 4),
    ("gsm8k-t0.7-k20-p0.8", "qwen-coder-gsm8k-t0.7-k20-p0.8", 3),
    ("gsm8k", "lossless-gsm8k", 3),
    ("scitldr", "qwen-coder-scitldr", 5),
    ("scitldr-t0", "qwen-coder-scitldr-t0", 5),
    ("cnndm", "qwen-coder-cnndm", 2),
    ("scitldr-t0.7-k20-p0.8", "qwen-coder-scitldr-t0.7-k20-p0.8", 5),
]


@pytest.mark.parametrize(("task", "name", "num_parts"), STUDIES)
def test_published_figures_follow_from_the_batches(task, name, num_parts):
    """Catches figures that were not computed from the published scores and counters of the prompts."""
    report = json.loads((RESULTS / "real" / f"{name}.json").read_text())
    published, folder = report["records"], RESULTS / "real" / "batches" / task
    parts = [read_results(folder / f"part-{part}") for part in range(num_parts)]
    computed, done = pair_study.summarize_parts(parts), pair_study.finished_parts(parts)
    assert [row["method"] for row in computed][: len(published)] == [row["method"] for row in published]
    for row, expected in zip(computed, published):
        scored = [key for key in FIGURES if expected[key] is not None]
        assert {key: row[key] for key in scored} == {key: pytest.approx(expected[key]) for key in scored}
    for expected in report["comparisons"]:
        label, others = expected["method"], expected["minus"].split(", ")
        common = [part for part in done[label] if all(part in done[other] for other in others)]
        results = pair_study.pooled(common)
        found = pair_study.compare(results, label, others) | {"n": results.header["n"]}
        known = {name: pytest.approx(value) for name, value in expected.items() if value is not None}
        assert found | known == found
    if (curve := report.get("at_equal_acceptance")) is not None:
        expected = [{name: pytest.approx(value) for name, value in row.items()} for row in curve]
        assert [row for name in pair_study.CURVES for row in pair_study.at_equal_acceptance(parts, name)] == expected


def test_committed_plots_are_current():
    """Catches a plot that was not drawn by `python -m tools.draw_plots`, and one without results."""
    drawn = {path.stem: path.read_bytes() for path in draw_plots.PLOTS.glob("*.png")}
    assert drawn.keys() == draw_plots.SOURCES.keys()
    digests = {name: draw_plots.digest(RESULTS / source).encode() for name, source in draw_plots.SOURCES.items()}
    assert [name for name, digest in digests.items() if digest not in drawn[name]] == []


def test_committed_pictures_are_current():
    """Catches pictures of the README that show other results than the committed ones."""
    assert (draw_figures.ASSETS / "frontier.svg").read_text() == draw_figures.frontier_picture()
    assert (draw_figures.ASSETS / "summaries.svg").read_text() == draw_figures.answers_picture()


@pytest.mark.parametrize("task", brief.TASKS, ids=lambda task: task.scores)
def test_first_table_shows_what_was_measured(task):
    """Catches a head that is not found, another row's score, and target forwards in place of seconds."""
    line = next(line for line in brief.render().splitlines() if line.startswith(f"| {task.label} |"))
    cell = line.removesuffix(" |").rpartition("| ")[2]
    if task.head is None:
        assert cell == "-"
        return
    records = json.loads((RESULTS / "real" / f"{task.scores}.json").read_text())["records"]
    quality = next(row["quality"] for row in records if row["method"] == task.head)
    unit, score = (
        ("s", f"{100 * quality:.1f}% right") if task.seconds else ("forwards", f"ROUGE-2 {100 * quality:.1f}")
    )
    assert re.fullmatch(rf"\d+\.\d {unit}<br>{score}", cell)


def test_claims_about_repeated_runs():
    """Catches standard errors in the text that do not follow from the scores of the runs on HumanEval."""
    gains = []
    for suffix, num_parts in (("", 1), ("-second", 2), ("-float32", 4)):
        folder = RESULTS / "real" / "batches" / f"humaneval-t0.7-k20-p0.8{suffix}"
        results = pair_study.pooled([read_results(folder / f"part-{part}") for part in range(num_parts)])
        scores = {label: np.zeros(results.header["n"]) for label in pair_study.EXACT}
        for (label, *_), entry in results.entries.items():
            if label in scores:
                scores[label][entry["rows"]["prompt"]] = entry["rows"]["score"]
        gains.append(scores["lossless"] - scores["target"])
    page = " ".join(MEASURING.read_text().split())
    for runs, claim in (
        (gains[1:], "{gain:.0f} more of {n} answers ({z:.1f} standard errors)"),
        (gains, "{gain:.0f} more of {n} ({z:.1f})"),
    ):
        by_prompt = np.sum(runs, axis=0)
        z = by_prompt.sum() / np.sqrt(len(by_prompt) * by_prompt.var(ddof=1))
        assert claim.format(gain=by_prompt.sum(), n=np.size(runs), z=z) in page
