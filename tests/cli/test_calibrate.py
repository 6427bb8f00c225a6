"""`hf-diversed calibrate` on the embedded pair: the strictness is saved in the head's folder and used from there."""

import json
import shutil
from unittest.mock import Mock

import pytest

from hf_diversed import load_demo_pair
from hf_diversed.zoo.loader import WEIGHTS
from tests.commands import refused, succeed


@pytest.fixture
def head(tmp_path):
    """A copy of the embedded head."""
    return shutil.copytree(WEIGHTS / "heads" / "math", tmp_path / "head")


def calibrate(head, *options: str):
    call = ["calibrate", str(head), "--task", "math", "--num-examples", "8", "--samples-per-prompt", "1"]
    return succeed(*call, "--max-new-tokens", "4", *options)


def test_writes_what_generate_uses(head):
    """Catches a result that is printed but not saved, settings lost from the configuration, a card of the user that is
    overwritten, and finished batches that are not reused.

    Four tokens contain no answer, so no strictness has a drop; eight prompts suffice for a limit of 0.9.
    """
    before = json.loads((head / "config.json").read_text())
    (head / "README.md").write_text("my card")
    options = ("--max-quality-drop", "0.9", "--confidence", "0.9")
    result = calibrate(head, *options)
    assert "The head's default strictness is now 0.05: a drop of at most 0.9 at 90% confidence." in result.output
    after = json.loads((head / "config.json").read_text())
    found = after["calibration"]
    assert after == before | {"calibration": found, "strictness": 0.05}
    assert (found["max_quality_drop"], found["strictness"], found["num_prompts"]) == (0.9, 0.05, 8)
    assert (head / "README.md").read_text() == "my card"
    pair = load_demo_pair()
    inputs = pair.tokenizer("Question: 1 + 1?", return_tensors="pt")
    call = {**inputs, "assistant_model": pair.draft, "diversed_head": str(head), "do_sample": True, "top_k": 0}
    out = pair.target.generate(**call, max_new_tokens=4, return_dict_in_generate=True)
    assert out.stats.strictness == 0.05
    (kept,) = (head / "calibration").iterdir()
    assert kept.name == "math_temperature-1_gamma-5"
    lines = (kept / "batches-0.jsonl").read_text()
    calibrate(head, *options)
    assert (kept / "batches-0.jsonl").read_text() == lines
    calibrate(head, *options, "--overwrite")
    assert (kept / "batches-0.jsonl").read_text() != lines  # the measured seconds differ


def test_samples_per_prompt(head, monkeypatch):
    """Catches another default at temperature 0, where completions of a prompt are identical, or above."""
    run = Mock(side_effect=ValueError("stopped"))
    monkeypatch.setattr("hf_diversed.cli.calibrate.run", run)
    for temperature, samples in (("0", 1), ("1", 2)):
        refused("stopped", "calibrate", head, "--task", "math", "--num-examples", "2", "--temperature", temperature)
        assert run.call_args.args[4].samples_per_prompt == samples


def test_a_failure_changes_nothing(head):
    """Catches a head that is written although no strictness passed: eight prompts do not suffice for 0.01."""
    before = (head / "config.json").read_bytes()
    result = calibrate(head, "--max-quality-drop", "0.01")
    assert "No strictness was found for a drop of 0.01, so the head is unchanged." in result.output
    assert (head / "config.json").read_bytes() == before
