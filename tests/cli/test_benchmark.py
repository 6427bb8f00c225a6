"""`hf-diversed benchmark`, run in process on shapes of a few kilobytes."""

import json

import pytest
from typer.testing import CliRunner

from hf_diversed.cli import app
from tests import tiny


@pytest.fixture
def configs(tmp_path) -> dict[str, str]:
    tiny.ARCHITECTURES["llama"]().config.save_pretrained(tmp_path)
    path = str(tmp_path / "config.json")
    return {"--target-config": path, "--draft-config": path}


def run(options: dict[str, str], *flags: str):
    parts = [part for option in options.items() for part in option]
    return CliRunner().invoke(app, ["benchmark", *parts, *flags], env={"COLUMNS": "80"})


def test_random_weights_end_to_end(configs, tmp_path):
    """Catches options that never arrive, tables that fail on a method without drafts, and figures cut to "1…"."""
    output = tmp_path / "new" / "benchmark.json"
    options = {
        "--methods": "target,upstream,lossless,fresh:both,fresh:distribution",
        "--acceptance": "0.9,0.8,0.8",
        "--batch-sizes": "1,2",
        "--context-lengths": "8,16",
        "--draft-lengths": "3,2",
        "--max-new-tokens": "12",
        "--repeats": "1",
        "--num-layers": "1",
        "--device": "cpu",
        "--output": str(output),
    }
    result = run(configs | options, "--random-weights")
    assert result.exit_code == 0, result.output
    for words in (
        "fresh:distribution",
        "bandwidth limit",
        "memory, and compiling",
        "ms per round, by part",
        "takes one row",
    ):
        assert words in result.output
    assert "…" not in result.output
    report = json.loads(output.read_text())
    assert report["provenance"]["num_layers"] == report["provenance"]["target"]["num_hidden_layers"] == 1
    assert report["provenance"]["benchmark"]["acceptance"] == [0.9, 0.8, 0.8]
    found = {
        (row["batch_size"], row["context_length"], row["num_assistant_tokens"])
        for row in report["records"]
        if row["method"] == "lossless"
    }
    assert found == {(1, 8, 3), (2, 8, 3), (1, 16, 3), (1, 8, 2)}


def test_compiled_methods(configs):
    """Catches a backend that never arrives, which would be minutes here, and a table without compiling in it."""
    options = {
        "--methods": "target,compiled:target,compiled:lossless",
        "--backend": "eager",
        "--acceptance": "0.9",
        "--batch-sizes": "1",
        "--context-lengths": "8",
        "--draft-lengths": "2",
        "--max-new-tokens": "12",
        "--repeats": "1",
        "--num-layers": "1",
        "--device": "cpu",
    }
    result = run(configs | options, "--random-weights")
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    (costs,) = (part for part in result.output.split("memory, and compiling")[1:])
    (line,) = (line for line in costs.splitlines() if line.startswith("compiled:lossless"))
    assert "-" not in line.split()
    assert line.rstrip().endswith("%")


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ({"--target-config": "qwen3-8b"}, (), "go together"),
        ({}, ("--random-weights",), "go together"),
        ({"--target-config": "no-such", "--draft-config": "qwen3-8b"}, ("--random-weights",), "no configuration"),
        ({"--num-layers": "2"}, (), "shapes random weights"),
        ({"--dtype": "float7"}, (), "--dtype must be one of"),
        ({"--methods": "static:abc"}, (), "--methods static:abc: `weight` must lie in [0, 1], got 'abc'"),
        ({"--methods": "upstream:2"}, (), "For example --methods upstream:0.7"),
        ({"--methods": "compiled:upstream:0.7"}, (), "takes no static cache"),
        ({"--methods": "compiled:static:2"}, (), "must lie in [0, 1]"),
        ({"--output": "/dev/null/here/x.json"}, (), "--output /dev/null/here/x.json cannot be written"),
        ({"--batch-sizes": "one"}, (), "several separated by commas"),
        ({"--batch-sizes": "1.5"}, (), "several separated by commas"),
        ({"--batch-sizes": "2,2"}, (), "not name a value twice"),
        ({"--acceptance": "2"}, (), "[0, 1]"),
    ],
)
def test_bad_options_are_messages(options, flags, words, monkeypatch):
    """Catches tracebacks where a sentence would do, and a pair that is loaded in vain."""
    if "--dtype" not in options:
        monkeypatch.setattr("hf_diversed.cli.models.load_pair", None)
    result = run(options, *flags)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
