"""`python -m benchmarks.rounds`, run in this process on models of a few kilobytes."""

import json

import pytest

from benchmarks.rounds.__main__ import main
from tests import tiny


@pytest.fixture
def configs(tmp_path) -> dict[str, str]:
    tiny.ARCHITECTURES["llama"]().config.save_pretrained(tmp_path)
    path = str(tmp_path / "config.json")
    return {"--target-config": path, "--draft-config": path}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def run(options: dict[str, str]) -> None:
    main([part for option in options.items() for part in option])


def test_random_weights_end_to_end(configs, tmp_path, capsys):
    """Catches options without effect, tables that fail for a method without draft tokens, and numbers cut to "1…"."""
    output = tmp_path / "new" / "benchmark.json"
    options = {"--methods": "target,upstream,lossless,fresh:both,fresh:distribution", "--output": str(output)}
    options |= {"--acceptance": "0.9,0.8,0.8", "--batch-sizes": "1,2", "--context-lengths": "8,16"}
    options |= {"--draft-lengths": "3,2", "--max-new-tokens": "12", "--repeats": "1", "--num-layers": "1"}
    options["--device"] = "cpu"
    run(configs | options)
    printed = capsys.readouterr().out
    tables = ("fresh:distribution", "bandwidth limit", "ms per round, by part")
    for words in (*tables, "supports only batch size 1"):
        assert words in printed
    assert "…" not in printed
    report = json.loads(output.read_text())
    assert report["provenance"]["num_layers"] == report["provenance"]["target"]["num_hidden_layers"] == 1
    assert report["provenance"]["benchmark"]["acceptance"] == [0.9, 0.8, 0.8]
    found = {
        (row["batch_size"], row["context_length"], row["num_assistant_tokens"])
        for row in report["records"]
        if row["method"] == "lossless"
    }
    assert found == {(1, 8, 3), (2, 8, 3), (1, 16, 3), (1, 8, 2)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"--target-config": "qwen3-8b"}, "go together"),
        ({"--target-config": "no-such", "--draft-config": "qwen3-8b"}, "no configuration"),
        ({"--num-layers": "2"}, "needs --target-config"),
        ({"--dtype": "float7"}, "--dtype: invalid choice"),
        ({"--methods": "static:2"}, "must lie in [0, 1]"),
        ({"--batch-sizes": "one"}, "invalid comma-separated int"),
        ({"--batch-sizes": "2,2"}, "must not repeat a value"),
    ],
)
def test_bad_options_are_messages(options, words, capsys):
    """Catches tracebacks for user errors."""
    with pytest.raises(SystemExit) as raised:
        run(options)
    assert raised.value.code == 2
    assert words in capsys.readouterr().err
