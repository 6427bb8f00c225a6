"""`benchmarks/real.py` on a tiny pair: what is trained, measured, timed and kept."""

import json
import sys

import pytest

from benchmarks import real
from hf_diversed import load_demo_pair
from tests.tiny import first_layers


@pytest.fixture
def folder(tmp_path):
    """A small target with a chat template in a folder, and records of a task."""
    pair = load_demo_pair()
    tokenizer = pair.tokenizer
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}\n{% endfor %}Answer:"
    for name, layers in (("target", 2), ("draft", 1)):
        first_layers(pair.target, layers).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    rows = [{"abstract": f"We count {n} apples. They are red.", "tldr": [f"We count {n} apples."]} for n in range(12)]
    (tmp_path / "scitldr.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def run(monkeypatch, folder):
    """Run the script with options, and read its report."""
    small = ["--max-new-tokens", "6", "--num-examples", "2", "--timed-prompts", "2", "--batch-sizes", "1,2"]

    def run(*options: str) -> dict:
        given = ["--output", str(folder / "out"), "--target", str(folder / "target"), *small, *options]
        monkeypatch.setattr(sys, "argv", ["real.py", *given])
        real.main()
        return json.loads((folder / "out" / "real.json").read_text())

    return run


def test_prompt_lookup_without_data(run, folder, capsys):
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
    times = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("seconds-*.json")}
    assert run("--backend", "eager", "--batch-sizes", "1")["records"] == report["records"]
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_heads_are_trained_once(run, folder, monkeypatch):
    """Catches a regime without the draft model, heads of one kind only, and work that is repeated."""
    files = f"scitldr={folder / 'scitldr.jsonl'},rewrite={folder / 'scitldr.jsonl'}"
    data = ["--data", files, "--max-new-tokens", "16", "--eager-only", "--train-examples", "4"]
    trained = ["--draft", str(folder / "draft"), "--head-steps", "2"]
    report = run(*data, *trained)
    places = [("draft", "scitldr"), ("draft", "rewrite"), ("lookup", "scitldr"), ("lookup", "rewrite")]
    assert [(record["regime"], record["task"]) for record in report["records"]] == places
    for (regime, _), record in zip(places, report["records"]):
        methods = [*real.METHODS, *(f"diversed:{folder / 'out' / regime / f'head-{name}'}" for name in real.HEADS)]
        assert [row["method"] for row in record["quality"]] == ["target", *methods]
        single, several = (list(part["methods"]) for part in record["seconds"])
        assert (single, several) == (["target", "upstream", *methods], ["target", *methods])
    rows = (folder / "out" / "train-scitldr.jsonl").read_text().splitlines()
    assert rows == (folder / "scitldr.jsonl").read_text().splitlines()[:-2]  # none of those that are measured
    configs = [folder / "out" / regime / f"head-{name}" for regime in ("draft", "lookup") for name in real.HEADS]
    kinds = [json.loads((config / "config.json").read_text()) for config in configs]
    assert [kind["token_features"] for kind in kinds] == [False, True] * 2
    assert [kind["assistant_model_name_or_path"] == "prompt lookup" for kind in kinds] == [False] * 2 + [True] * 2
    monkeypatch.setattr(real, "call", lambda *_: pytest.fail("a head was trained again"))
    assert run(*data, *trained)["records"] == report["records"]


def test_heads_need_data(run):
    """Catches heads that are trained without data, reported after the model was loaded."""
    with pytest.raises(ValueError, match="--head-steps needs --data"):
        run("--head-steps", "2")
