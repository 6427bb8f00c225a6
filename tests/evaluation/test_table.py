"""The tables of evaluation records."""

import io

import pytest
from rich.console import Console

from hf_diversed.evaluation import markdown_table
from hf_diversed.evaluation.table import results_table


def record(method: str, accepted: float | None, quality: float, **changes) -> dict:
    shown = {"method": method, "task": "math", "metric": "accuracy", "n": 100, "samples_per_prompt": 2}
    rates = {"acceptance_rate": accepted, "acceptance_rate_ci": None if accepted is None else [0.1, 0.9]}
    figures = {"quality": quality, "quality_ci": [0.2, 0.8], "cut_off_rate": 0.02, "temperature": 1.0}
    return {**shown, **rates, **figures, "num_assistant_tokens": 5, **changes}


def test_markdown():
    """Catches a missing value that fails, and cells in another column."""
    assert markdown_table([record("target", None, 0.7), record("lossless", 0.445, 0.67)]) == (
        "math, temperature 1, 5 draft tokens per round, 100 prompts x 2 samples.\n"
        "\n"
        "| method | accepted | accuracy | cut off |\n"
        "|---|---:|---:|---:|\n"
        "| `target` | - | 70.0% | 2.0% |\n"
        "| `lossless` | 44.5% | 67.0% | 2.0% |\n"
    )


@pytest.mark.parametrize("length", [8, 40])
def test_the_terminal_shows_whole_figures(length):
    """Catches figures that a long name of a method shortens."""
    row = record("m" * length, 0.823, 0.517, tokens_per_second=50.0, block_efficiency=4.55)
    console = Console(width=80, file=io.StringIO())
    console.print(results_table([row, row | {"method": "target"}]))
    text = console.file.getvalue()
    for figure in ("82.3%", "4.55", "51.7%", "20.00", "1.00x"):
        assert text.count(figure) == 2
    assert max(map(len, text.splitlines())) <= 80
