"""`hf-diversed calibrate` on the embedded pair: the table is saved in the head's folder and used from there."""

import json
import shutil

import pytest

from hf_diversed import DiversedHead, load_demo_pair
from hf_diversed.zoo.loader import WEIGHTS
from tests.commands import succeed


@pytest.fixture
def head(tmp_path):
    """A copy of the embedded head."""
    return shutil.copytree(WEIGHTS / "heads" / "math", tmp_path / "head")


def calibrate(head, *options: str):
    call = ["calibrate", str(head), "--task", "math", "--num-examples", "8", "--samples-per-prompt", "1"]
    return succeed(*call, "--max-new-tokens", "4", *options)


def test_writes_what_generate_takes(head):
    """Catches a table that is printed but not saved, settings lost from the configuration, and a card without it.

    Four tokens contain no answer, so no strictness has a drop; eight prompts suffice to certify 0.9, but not 0.01.
    """
    before = json.loads((head / "config.json").read_text())
    result = calibrate(head, "--max-quality-drop", "0.9,0.01", "--confidence", "0.9")
    assert "diversed_max_drop=0.9 uses strictness 0.05, at 90% confidence." in result.output
    assert "No strictness was certified for a drop of 0.01" in result.output
    after = json.loads((head / "config.json").read_text())
    assert after | {"certified_drops": None} == before | {"certified_drops": None}
    (entry,) = after["certified_drops"]
    assert (entry["max_drop"], entry["strictness"], entry["num_prompts"]) == (0.9, 0.05, 8)
    card = (head / "README.md").read_text()
    assert "### Certified drops" in card
    assert "| 0.9 | 0.9 | 0.05 | 0.0% | " in card
    pair = load_demo_pair()
    inputs = pair.tokenizer("Question: 1 + 1?", return_tensors="pt")
    call = {**inputs, "assistant_model": pair.draft, "diversed_head": str(head), "do_sample": True, "top_k": 0}
    out = pair.target.generate(**call, diversed_max_drop=0.9, max_new_tokens=4, return_dict_in_generate=True)
    assert out.stats.strictness == 0.05


def test_goes_on_where_it_stopped(head):
    """Catches finished batches that are not reused, and an earlier table that stays beside the new one."""
    options = ("--max-quality-drop", "0.9")
    calibrate(head, *options)
    (kept,) = (head / "calibration").iterdir()
    lines = (kept / "batches-0.jsonl").read_text()
    assert kept.name == "math_temperature-1_gamma-5"
    calibrate(head, *options)
    assert (kept / "batches-0.jsonl").read_text() == lines
    assert len(DiversedHead.from_pretrained(head).config.certified_drops) == 1
