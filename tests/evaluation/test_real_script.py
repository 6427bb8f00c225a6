"""`benchmarks/real.py` on a tiny pair: what is trained, measured, timed and kept."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

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
    report = run("--batch-sizes", "1")
    (record,) = report["records"]
    assert record["task"] == "rewrite"
    assert [row["method"] for row in record["quality"]] == ["target", *real.METHODS]
    (single,) = (part["methods"] for part in record["seconds"])
    assert list(single) == ["target", "upstream", *real.METHODS]
    for row in single.values():
        assert row["tokens_per_second"] > 0
        assert all(0 < sum(turn["tokens"]) <= 12 for turn in row["turns"])
    printed = capsys.readouterr().out
    assert "rewrite" in printed
    assert printed.count("lossless") == 2  # quality and speed
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("seconds-*.json")}
    assert run("--batch-sizes", "1")["records"] == report["records"]
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_head_with_other_settings_is_refused(tmp_path, monkeypatch):
    """Catches a head that is reported with settings of another one, and evaluated records in its training data."""
    texts = [f"It rained {n} times." for n in range(3)]
    (tmp_path / "texts").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) + "\n")
    monkeypatch.setattr(real, "call", lambda arguments: (Path(arguments[-1]) / real.DONE).write_text("{}"))
    settings = {"output": tmp_path, "target": str(tmp_path), "dtype": "float32", "train_examples": 2, "gamma": 5}
    settings |= {"num_examples": 1, "max_new_tokens": 6, "temperature": 1.0, "seed": 0}
    settings["data"] = {"rewrite": tmp_path / "texts"}
    for _ in range(2):
        real.trained_head("rewrite", tmp_path / "head", SimpleNamespace(**settings, head_steps=4))
    rows = (tmp_path / "train-rewrite.jsonl").read_text().splitlines()
    assert [json.loads(row)["text"] for row in rows] == texts[:2]
    with pytest.raises(ValueError, match="was written with other settings"):
        real.trained_head("rewrite", tmp_path / "head", SimpleNamespace(**settings, head_steps=8))
