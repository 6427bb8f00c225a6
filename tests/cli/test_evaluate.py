"""`hf-diversed evaluate` on the embedded pair: sweeps, files and tables."""

import json

import pytest
from typer.testing import CliRunner

from hf_diversed.cli import app


CALL = ["evaluate", "--task", "math", "--methods", "ar,static:0.5", "--num-examples", "2", "--max-new-tokens", "6"]


def run(*options: str):
    return CliRunner().invoke(app, [*CALL, *options], env={"COLUMNS": "100"})


def test_sweep_from_the_command_line(tmp_path):
    """Catches a list read as one value, combinations left out, tables of other parts, and missing files."""
    output, markdown = tmp_path / "all.json", tmp_path / "all.md"
    options = ("--temperature", "0,1.0", "--num-assistant-tokens", "2,3", "--output", str(output))
    result = run(*options, "--markdown", str(markdown))
    assert result.exit_code == 0, result.output
    records = json.loads(output.read_text())["records"]
    settings = [(row["temperature"], row["num_assistant_tokens"]) for row in records]
    assert settings == [(t, gamma) for t in (0, 1) for gamma in (2, 3) for _ in range(2)]
    assert {row["split"] for row in records} == {"test"}
    folders = {path.name for path in (tmp_path / "all.parts").iterdir()}
    assert folders == {f"temperature-{t}_gamma-{gamma}" for t in (0, 1) for gamma in (2, 3)}
    assert markdown.read_text().count("| `static:0.5` |") == 4
    assert result.output.count("standard errors") == 4
    assert "Temperature 0, 3 drafts per round" in result.output
    for row in records[1::2]:
        assert f"{row['accepted_length']:.2f}" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--temperature", "hot"], "--temperature must be a number"),
        (["--temperature", "0.1,0.1"], "--temperature must not name a value twice"),
        (["--temperature", "0.5,-1"], "`temperature` must be >= 0"),
        (["--num-assistant-tokens", "3,0"], "`num_assistant_tokens` must be >= 1"),
        (["--num-assistant-tokens", "2.5"], "--num-assistant-tokens must be a number"),
    ],
)
def test_bad_lists_are_refused_in_words(options, words):
    """Catches a sweep that fails at its last part, and a traceback."""
    result = run(*options)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
