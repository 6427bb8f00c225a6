"""The page of results, rendered from invented results."""

import json
import shlex

import pytest

from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS
from tests.commands import run
from tests.evaluation.measured import record, sweep
from tools import draw_plots, render_learning, render_studies
from tools.render_results import COMMANDS, RESULTS, missing, pivot, read_asked, tasks


def write(folder, **files):
    for name, records in files.items():
        (folder / f"{name}.json").write_text(json.dumps({"records": records}))


def results(folder) -> str:
    """Return all tables of a folder of results."""
    parts = [part(folder) for part in (tasks, render_learning.studies, render_studies.studies)]
    return "\n\n".join(text for part in parts for text in part.values())


def test_without_results_the_commands_are_named(tmp_path):
    """Catches a section that is silently empty."""
    text = results(tmp_path)
    for name, command in COMMANDS.items():
        assert text.count(f"{command} --output results/{name}") == 1
    assert len(missing(tmp_path)) == len(COMMANDS)


def test_section(tmp_path):
    """Catches figures in wrong cells, a strictness above the curve without its bound, and incomplete sweeps."""
    rows = [record("target", None, 0.9), record("lossless", 0.6, 0.89)]
    write(tmp_path, math=rows, summary=[{**row, "task": "summary", "quality": 0.5} for row in rows])
    other = record("lenience:0.4", 0.75, 0.55, static_gain=0.05, static_gain_ci=[-0.02, 0.09])
    write(tmp_path, **{"frontier-math": [*sweep(), other, *sweep(num_assistant_tokens=3)[:4]]})
    write(tmp_path, **{"math-t0": [{**rows[1], "temperature": 0.0, "quality": 0.7}]})
    heads = [("math", "math", 0.8), ("math", "code", 0.2), ("code", "math", 0.3), ("code", "code", 0.6)]
    cells = [record("diversed", 0.7, q, trained_on=a, tested_on=b) for a, b, q in heads]
    write(tmp_path, transfer=cells)
    text = results(tmp_path)
    assert "![Quality against acceptance on math](assets/plots/frontier-math.png)" in text
    assert "1 of 2 strictness settings" in text
    assert "| `diversed@0.7` | 70.0% (68.0% to 71.0%) | 84.0% (79.0% to 87.0%) | 24.0% (20.0% to 30.0%) |" in text
    assert "| `lenience:0.4` | 75.0% (73.0% to 76.0%) | 55.0% (50.0% to 58.0%) | 5.0% (-2.0% to 9.0%) |" in text
    assert (
        "| math | code |\n|---|---|---|\n| `math` | 70.0% / 80.0% | 70.0% / 20.0% |\n| `code` | 70.0% / 30.0%" in text
    )
    assert "| method | 0 | 1 |\n|---|---|---|\n| `lossless` | 60.0% / 70.0% | 60.0% / 89.0% |\n" in text
    assert "\n| `target` |  | - / 90.0% |" in text
    assert "Draft tokens per round on math" not in text, "one draft length is no sweep"
    assert "at most 1.5 (accepted) and 4.0 (quality) points" in text
    assert "code.json" in text
    assert len(missing(tmp_path)) == len(COMMANDS) - 5


def test_studies(tmp_path):
    """Catches rows of the reference methods, and figures in the wrong columns."""
    rows = [record("lossless", 0.6, 0.89), record("diversed", 0.8, 0.9), record("constant", 0.65, 0.7)]
    difference = {"acceptance_rate": 0.15, "acceptance_rate_ci": [0.1, 0.2], "quality": 0.2, "quality_ci": [0.1, 0.3]}
    differences = [{"method": "diversed", "minus": "constant", **difference}]
    (tmp_path / "controls-math.json").write_text(
        json.dumps({"records": rows, "differences": differences, "provenance": {"argv": ["x", "--set", "{}"]}})
    )
    role = {"tokens": 1234, "mean_weight": 0.25, "mean_tv": 0.5, "accepted_share": 0.75}
    (tmp_path / "roles-math.json").write_text(json.dumps({"roles": {"wording": role}, "n": 500}))
    text = results(tmp_path)
    assert "the others trained with `{}`)" in text
    assert "| `constant` | 65.0% (63.0% to 66.0%) | 70.0%" in text
    assert "| - | 15.0% (10.0% to 20.0%) | 20.0% (10.0% to 30.0%) |" in text
    assert "`diversed` is the packaged mixture head" in text
    assert "| `diversed` | 80.0%" in text
    assert "| `lossless` | 60.0%" not in text
    assert "| wording | 0.25 | 0.50 | 75.0% | 1,234 |" in text


def difference(method: str, minus: str, better: float, p_value: float | None) -> dict:
    bounds = {"quality_ci": [better - 0.01, better + 0.01], "acceptance_rate_ci": [0.0, 0.02]}
    names = {"method": method, "minus": minus}
    return names | {"quality": better, "quality_p": p_value, "acceptance_rate": 0.01} | bounds


def test_studies_of_learning(tmp_path):
    """Catches verifiers in each other's rows, uncorrected p-values, and an oracle at another share."""
    rates = {"lossless": 0.6, "diversed-mixture": 0.8, "spec_cascade:token_v3:0.95": 0.9, "lenience:0.07": 0.93}
    rates |= {"untrained@0.6": 0.92, "diversed": 0.94, "seed-43": 0.935, "seed-44": 0.925, "gelu-64": 0.91}
    against = [("lenience:0.07", 0.006, 0.01), ("untrained@0.6", 0.005, 0.02)]
    against += [("cascade", 0.0, None), ("mixture", 0.01, 0.04)]
    comparisons = [difference("diversed, seed-43", *one) for one in against]
    comparisons.append(difference("diversed", "gelu-64", 0.02, 0.5))
    matched = {"diversed": {"lenience": "lenience:0.07", "untrained": "untrained@0.6"}}
    records = [record(name, rate, 0.9) for name, rate in rates.items()]
    study = {"records": records, "matched": matched, "comparisons": comparisons}
    (tmp_path / "learning-math.json").write_text(json.dumps(study))
    costs = {"oracle": 0.01, "lenience": 0.03, "mixture head": 0.04, "token head": 0.02}
    shares = {name: [{"kept": 0.5, "cost": value, "cost_ci": [0.0, 0.05]}] for name, value in costs.items()}
    ceiling = {"positions": 2000, "continuations": 4, "lossless_acceptance": 0.8, "shares": shares}
    ceiling["free"] = {"oracle": 0.5, "lenience": 0.0, "mixture head": 0.1, "token head": 0.25}
    (tmp_path / "ceiling-math.json").write_text(json.dumps(ceiling))
    counts = {"task": "math", "calibrations": 300, "prompts_per_calibration": 600, "confidence": 0.95}
    stated = [{"max_drop": 0.02, "found": 0.9, "kept": 0.99, "strictnesses": {"0.4": 270}}]
    pool = [{"strictness": 0.4, "drop": 0.015, "acceptance_rate": 0.95}]
    (tmp_path / "calibration.json").write_text(
        json.dumps({**counts, "stated": stated, "hardest": stated, "pool": pool})
    )
    text = results(tmp_path)
    assert "| lenience, matched | 93.0%" in text
    assert "| untrained head, matched | 92.0%" in text
    assert "| **token head** | 94.0%" in text
    assert "+0.60 (-0.40 to +1.60), p = 0.040 |" in text
    assert "+0.50 (-0.50 to +1.50), p = 0.060 |" in text
    assert "+0.00 (-1.00 to +1.00), p = 1.000 |" in text
    assert "| 64 GELU units | 91.0%" in text
    assert "+2.00 (+1.00 to +3.00) |" in text
    assert "| ranked by | 50% kept | free share |" in text
    assert "| math | an oracle | 1.0 (0.0 to 5.0) | 50.0% | 90.0% |" in text
    assert "| math | the token head | 2.0 (0.0 to 5.0) | 25.0% | 85.0% |" in text
    assert "| 0.4 | 95.0% | 1.5 |" in text
    assert "| 2 | 90.0% | 99.0% | 0.4 (270) |" in text


@pytest.mark.parametrize("name", [name for name in COMMANDS if (RESULTS / name).is_file()])
def test_commands_made_the_committed_results(name):
    """Catches results that were made by another command than the documented one."""
    argv = json.loads((RESULTS / name).read_text())["provenance"]["argv"]
    renamed = {"frontier": "evaluate", "--rules": "--frontier"}
    argv = [renamed.get(word, word) for word in argv]
    if "--output" in argv:
        del argv[argv.index("--output") : argv.index("--output") + 2]
    words = shlex.split(COMMANDS[name].removeprefix("hf-diversed ").removeprefix("python "))
    if words[0] == "-m":
        words = words[2:]
    assert sorted(argv if argv[0] == words[0] else argv[1:]) == sorted(words)


def test_contributors_find_the_command():
    """Catches a documented command for packaged heads that differs from the one for the committed results."""
    guide = (RESULTS.parent / "CONTRIBUTING.md").read_text()
    shown = " ".join(guide.replace("\\\n", " ").split())
    assert f"{COMMANDS['math.json']} --output results/math.json" in shown


def test_records_of_a_study_stay_out_of_a_tasks_tables(tmp_path):
    """Catches rows that are not in the task's command, and the loss of one that is."""
    write(tmp_path, math=[record("target", None, 0.9), record("lossless", 0.6, 0.89), record("seed-43", 0.7, 0.8)])
    assert [row["method"] for row in read_asked(tmp_path / "math.json")] == ["target", "lossless"]
    assert "seed-43" not in results(tmp_path)


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


def test_cells_hold_one_record():
    with pytest.raises(ValueError, match="there must be one record"):
        pivot([record("lossless", 0.5, 0.5), record("lossless", 0.6, 0.6)], "method", "task", "method")


def test_plots_of_other_results_are_outdated(tmp_path):
    """Catches a plot of results that differ from those in the repository, or that were removed."""
    plots = tmp_path / "plots"
    assert draw_plots.outdated(plots, tmp_path) == []
    write(tmp_path, **{"frontier-math": sweep()})
    names = ["frontier-math", "positions-math"]
    assert draw_plots.outdated(plots, tmp_path) == names
    draw_plots.draw(plots, tmp_path)
    assert draw_plots.outdated(plots, tmp_path) == []
    write(tmp_path, **{"frontier-math": sweep()[:-1]})
    assert draw_plots.outdated(plots, tmp_path) == names
    (tmp_path / "frontier-math.json").unlink()
    assert draw_plots.outdated(plots, tmp_path) == names


def test_committed_plots_are_current():
    assert draw_plots.outdated() == []


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.startswith("hf-diversed")])
def test_commands_are_commands(name):
    """Catches options that do not exist: each command runs up to an unknown task."""
    words = shlex.split(COMMANDS[name])[1:]
    words[words.index("--task") + 1] = "nothing"
    result = run(*words)
    assert "unknown task" in result.output, result.output
