"""`benchmarks/real.py` on a tiny pair: what is trained, measured, timed and kept."""

import json
import sys

import pytest

from benchmarks import real
from hf_diversed import load_demo_pair
from tests.tiny import first_layers


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the script with options on a small target with a chat template, and read its report."""
    pair = load_demo_pair()
    pair.tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}Answer:"
    first_layers(pair.target, 2).save_pretrained(tmp_path / "target")
    pair.tokenizer.save_pretrained(tmp_path / "target")
    small = ["--max-new-tokens", "6", "--num-examples", "2", "--timed-prompts", "2"]

    def run(*options: str) -> dict:
        given = ["--output", str(tmp_path / "out"), "--target", str(tmp_path / "target"), *small, *options]
        monkeypatch.setattr(sys, "argv", ["real.py", *given])
        real.main()
        return json.loads((tmp_path / "out" / "real.json").read_text())

    return run


def test_prompt_lookup_without_data(run, tmp_path, capsys):
    """Catches a missing method, seconds of one under another's name, and a sample that is measured again."""
    report = run("--backend", "eager", "--batch-sizes", "1")
    (record,) = report["records"]
    assert (record["regime"], record["task"]) == ("lookup", "rewrite")
    assert [row["method"] for row in record["quality"]] == ["target", *real.METHODS]
    (single,) = (part["methods"] for part in record["seconds"])
    compiled = [f"{name}, compiled" for name in real.COMPILED]
    assert list(single) == ["target", "upstream", *real.METHODS, *compiled]
    for name, row in single.items():
        assert row["tokens_per_second"] > 0
        assert all(0 < turn["tokens"] <= 12 and turn["rounds"] <= turn["tokens"] for turn in row["turns"])
        assert (row["milliseconds_per_round"] is None) == (name == "upstream")
    assert single["target"]["turns"][0]["rounds"] == single["target"]["turns"][0]["tokens"]
    assert "lookup, rewrite" in capsys.readouterr().out
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("seconds-*.json")}
    assert run("--backend", "eager", "--batch-sizes", "1")["records"] == report["records"]
    assert times == {path: path.stat().st_mtime_ns for path in times}
