"""The table in the paper's layout, from records of several evaluations."""

import pytest

from hf_diversed.evaluation import markdown_table
from hf_diversed.evaluation.sweep import merge_reports


def record(method: str, task: str, accepted: float | None, quality: float, **changes) -> dict:
    shown = {"method": method, "task": task, "metric": f"{task} score", "n": 100, "samples_per_prompt": 2}
    rates = {"acceptance_rate": accepted, "acceptance_rate_ci": None if accepted is None else [0.1, 0.9]}
    figures = {
        "quality": quality,
        "quality_ci": [0.2, 0.8],
        "cut_off_rate": 0.02,
        "temperature": 1.0,
        "num_assistant_tokens": 5,
    }
    return {**shown, **rates, **figures, **changes}


def test_methods_by_tasks():
    """Catches cells in another task's column, also where a method did not run."""
    rows = [record("target", "math", None, 0.7), record("lossless", "math", 0.445, 0.67)]
    rows += [record("lossless", "code", 0.263, 0.53, n=50), record("diversed", "code", 0.85, 0.53)]
    assert markdown_table(rows) == (
        "Temperature 1, 5 draft tokens per round; prompts x samples: 100 x 2 (math), 50 x 2 (code).\n"
        "\n"
        "| method | math: accepted | math score | cut off | code: accepted | code score | cut off |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n"
        "| `target` | - | 70.0% | 2.0% | - | - | - |\n"
        "| `lossless` | 44.5% | 67.0% | 2.0% | 26.3% | 53.0% | 2.0% |\n"
        "| `diversed` | - | - | - | 85.0% | 53.0% | 2.0% |\n"
    )


def test_a_table_for_every_setting():
    """Catches temperatures and draft lengths that overwrite each other, and two records for one cell."""
    rows = [
        record("lossless", "math", 0.4, 0.6, temperature=t, num_assistant_tokens=g) for t in (0.0, 0.1) for g in (3, 5)
    ]
    text = markdown_table(rows)
    assert text.count("| method |") == 4
    assert text.index("Temperature 0, 5 draft tokens") < text.index("Temperature 0.1, 3 draft tokens")
    with pytest.raises(ValueError, match="'lossless' on task 'math' at temperature 0, 3 draft tokens per round"):
        markdown_table([*rows, rows[0]])
    with pytest.raises(ValueError, match="at least one record"):
        markdown_table([])


def test_reports_are_merged():
    """Catches records or sessions of the first report only, and settings of one evaluation used for all."""
    of_part = {n: {"evaluation": {"n": n}, "methods": {"lossless": str(n)}} for n in (1, 2)}
    reports = [
        {"records": [n], "provenance": {"time": n, "sessions": [{"time": n + 0.5}]} | of_part[n]} for n in (1, 2)
    ]
    assert merge_reports(reports[:1]) == reports[0]
    merged = {"evaluations": [{"n": 1}, {"n": 2}], "methods_of_evaluations": [{"lossless": "1"}, {"lossless": "2"}]}
    merged["sessions"] = [{"time": 1.5}, {"time": 2}, {"time": 2.5}]
    assert merge_reports(reports) == {"records": [1, 2], "provenance": {"time": 1} | merged}
    del reports[0]["provenance"]["sessions"]  # an earlier version recorded none
    assert merge_reports(reports)["provenance"]["sessions"] == merged["sessions"][1:]
