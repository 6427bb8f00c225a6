"""The committed results: the records read from them, and the tables and plots made of the records."""

import json
import shutil

import numpy as np
import pytest

import tools.figures
from benchmarks import pair as pair_study
from hf_diversed.evaluation import read_results
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS
from tools import draw_figures, draw_plots
from tools.figures import RESULTS, _counted, figures, flatten, over_target
from tools.tables import TABLES, brief
from tools.tables.parts import Column, Row, Table, below, count, number, rate, tenths, times


MEASURING = RESULTS.parent / "docs" / "measuring.md"
FIGURES = ("n", "acceptance_rate", "acceptance_rate_ci", "block_efficiency", "mean_tokens", "mean_rounds")
FIGURES += ("quality", "quality_ci", "quality_drop", "quality_drop_ci", "prompts_better", "prompts_worse")


def test_every_form_of_bounds_is_read():
    """Catches a figure without its bounds, a flag read as a number, and bounds read as a figure."""
    row = {"a": 0.5, "a_ci": [0.4, 0.6], "b": {"median": 2.0, "quartiles": [1.0, 3.0]}, "c": True, "d": None}
    row |= {"e": {"mean": 1.0, "error": 0.25}, "f": [3.0, 2.0, 4.0], "g": "words", "h_ci": [0.1, 0.2]}
    row |= {"j": 7, "j_ci": None}
    found = {figure.metric: figure[5:] for figure in flatten("study", "task", "method", 10, row)}
    expected = {"a": (0.5, 0.4, 0.6), "b": (2.0, 1.0, 3.0), "e": (1.0, 0.75, 1.25), "f": (3.0, 2.0, 4.0)}
    assert found == expected | {"j": (7, None, None)}


def test_figures_of_a_study():
    """Catches a reader that mixes up methods, or differences with methods."""
    recorded = json.loads((RESULTS / "real" / "qwen-coder-mbpp.json").read_text())
    found = {(figure.method, figure.metric): figure for figure in figures("qwen-coder-mbpp")}
    row, difference = recorded["records"][1], recorded["comparisons"][0]
    assert found[row["method"], "quality"][3:] == (row["n"], "quality", row["quality"], *row["quality_ci"])
    name = f"{difference['method']} minus {difference['minus']}"
    assert found[name, "quality"].value == difference["quality"]


def test_bounds_of_one_turn_are_paired_by_batch():
    """Catches a mean of ratios, and batches of the target that are drawn apart from those of the method."""
    target = {"seconds": [1.0, 2.0, 30.0], "tokens": [10, 20, 300]}
    halved = {"seconds": [0.5, 1.0, 15.0], "tokens": [10, 20, 300]}
    assert over_target([halved], [target]) == {"tokens/s": (2.0, 2.0, 2.0), "speedup": (2.0, 2.0, 2.0)}
    uneven = {"seconds": [1.0, 1.0, 15.0], "tokens": [20, 20, 300]}
    found = over_target([uneven], [target])
    assert found["speedup"] == pytest.approx((33 / 17, 1.0, 2.0))
    assert found["tokens/s"][0] == pytest.approx(340 / 17 / 10)


@pytest.mark.parametrize(
    ("form", "value", "low", "text"),
    [
        (rate, 0.5, 0.25, "50.0% (25.0% to 75.0%)"),
        (rate, -0.0001, None, "0.0%"),
        (tenths, 0.0481, 0.015, "4.8 (1.5 to 75.0)"),
        (below, 0.5, 0.25, "-50.0 (-75.0 to -25.0)"),
        (number, 4.066, None, "4.07"),
        (times, 1.5, 1.25, "1.50x (1.25 to 0.75)"),
        (count, 1234, None, "1,234"),
    ],
)
def test_formats(form, value, low, text):
    """Catches wrong units, and bounds that are not shown."""
    figure = figures("math")[0]._replace(value=value, low=low, high=None if low is None else 0.75)
    assert form(figure) == text


def test_a_table_without_its_figures_is_refused():
    """Catches a row or a column that is silently empty, and one cell with two figures."""
    row, column = Row("a", "lossless", "math", "math"), Column("b", "quality")
    with pytest.raises(KeyError, match="no figure for Row"):
        Table("", [row, row._replace(method="no such method")], [column], "").render()
    with pytest.raises(KeyError, match="no figure for Column"):
        Table("", [row], [column, column._replace(metric="no such metric")], "").render()
    with pytest.raises(ValueError, match="must be one figure"):
        Table("", [Row("a", "lossless:confidence", "draft-lengths-int4")], [Column("c", "over_target")], "").render()


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


@pytest.mark.parametrize("name", TABLES)
def test_tables_state_their_setting(name):
    """Catches a table without a caption, and one with NaN or None."""
    shown = TABLES[name].render()
    assert len(shown.rpartition("\n\n")[2]) > 20
    assert not any(word in shown for word in ("nan", "None", "{"))


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
    ("scitldr", "qwen-coder-scitldr", 3),
]


@pytest.mark.parametrize(("task", "name", "num_parts"), STUDIES)
def test_published_sums(task, name, num_parts):
    """Catches an error in the library's summary: sums of the published lines are computed here without the library."""
    records = json.loads((RESULTS / "real" / f"{name}.json").read_text())["records"]
    rows = [{} for _ in records]  # by prompt
    for part in range(num_parts):
        for path in (RESULTS / "real" / "batches" / task / f"part-{part}").glob("*.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()[1:]):
                if "rows" not in line:  # a session
                    continue
                for record, found in zip(records, rows):
                    if line["method"] == record["method"]:
                        columns = line["rows"]
                        for index, prompt in enumerate(columns["prompt"]):
                            found[part, prompt] = {key: values[index] for key, values in columns.items()}
    for record, found in zip(records, rows):
        for key, mean in (("score", "quality"), ("tokens", "mean_tokens"), ("num_rounds", "mean_rounds")):
            if record[mean] is not None:
                assert record[mean] == pytest.approx(sum(row[key] for row in found.values()) / len(found))
        if record["acceptance_rate"] is not None:
            accepted, drafted = (sum(row[key] for row in found.values()) for key in ("num_accepted", "num_drafted"))
            assert record["acceptance_rate"] == pytest.approx(accepted / drafted)
        if record["reference"] is not None:
            gains = [found[key]["score"] - rows[0][key]["score"] for key in found]
            discordant = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
            assert (record["prompts_better"], record["prompts_worse"]) == discordant
            assert record["quality_drop"] == pytest.approx(-sum(gains) / len(gains))


@pytest.mark.parametrize(("task", "name", "num_parts"), STUDIES)
def test_published_figures_follow_from_the_batches(task, name, num_parts):
    """Catches figures that were not computed from the published scores and counters of the prompts."""
    report = json.loads((RESULTS / "real" / f"{name}.json").read_text())
    published, folder = report["records"], RESULTS / "real" / "batches" / task
    parts = [read_results(folder / f"part-{part}") for part in range(num_parts)]
    computed, done = pair_study.summarize_parts(parts), pair_study.finished_parts(parts)
    assert [row["method"] for row in computed][: len(published)] == [row["method"] for row in published]
    for row, expected in zip(computed, published):
        assert {key: row[key] for key in FIGURES} == {key: pytest.approx(expected[key]) for key in FIGURES}
    for expected in report["comparisons"]:
        label, others = expected["method"], expected["minus"].split(", ")
        common = [part for part in done[label] if all(part in done[other] for other in others)]
        results = pair_study.pooled(common)
        found = pair_study.compare(results, label, others) | {"n": results.header["n"]}
        assert found == {name: pytest.approx(value) for name, value in expected.items()}


def test_committed_plots_are_current():
    """Catches a plot that was not drawn by `python -m tools.draw_plots`, and one without results."""
    drawn = {path.stem: path.read_bytes() for path in draw_plots.PLOTS.glob("*.png")}
    assert drawn.keys() == draw_plots.SOURCES.keys()
    digests = {name: draw_plots.digest(RESULTS / source).encode() for name, source in draw_plots.SOURCES.items()}
    assert [name for name, digest in digests.items() if digest not in drawn[name]] == []


def test_committed_frontier_is_current():
    """Catches the README's picture of other results than the committed ones."""
    assert (draw_figures.ASSETS / "frontier.svg").read_text() == draw_figures.frontier_picture()


def test_first_table_shows_the_measured_tasks(tmp_path, monkeypatch):
    """Catches a task that was measured and is not shown, a head that is not found, a cell of another method, and
    seconds in the place of forward passes."""
    shutil.copytree(RESULTS / "real", tmp_path / "real", ignore=shutil.ignore_patterns("batches", "*scitldr*"))
    for module in (brief, tools.figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(brief, "figures", tools.figures.figures.__wrapped__)  # without its cache
    assert "summaries" not in brief.render()
    rows = [{"method": "target", "quality": 0.105, "mean_rounds": 44.0}]
    rows += [{"method": "diversed:model_cards/any", "quality": 0.1, "mean_rounds": 9.94}]
    records = [row | {"task": "scitldr", "n": 400} for row in rows]
    differences = [{"method": "diversed:model_cards/any", "minus": "target", "quality": -0.005}]
    study = {"records": records, "comparisons": differences}
    turns = {"target": {"turns": [{"seconds": [2.0, 4.0]}]}}
    timed = {"records": [{"seconds": [{"batch_size": 1, "methods": turns}]}]}
    cells = "44.0 forwards, 10.5 | - | - | - | 9.9 forwards, 10.0", "3.0 s, 10.5 | - | - | - | 10.0"
    for (name, content), expected in zip((("scitldr", study), ("speed-scitldr", timed)), cells):
        (tmp_path / "real" / f"qwen-coder-{name}.json").write_text(json.dumps(content))
        row = next(line for line in brief.render().splitlines() if line.startswith("| summaries"))
        assert row == f"| summaries (SciTLDR, ROUGE-2) | {expected} |"


def results_of(task, num_parts):
    """Return the published scores and counters of the first parts of a study."""
    folder = RESULTS / "real" / "batches" / task
    return pair_study.pooled([read_results(folder / f"part-{part}") for part in range(num_parts)])


def test_claims_about_repeated_runs():
    """Catches standard errors in the text that do not follow from the scores of the runs on HumanEval."""
    gains = []
    for suffix, num_parts in (("", 1), ("-second", 2), ("-float32", 4)):
        results = results_of(f"humaneval-t0.7-k20-p0.8{suffix}", num_parts)
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
