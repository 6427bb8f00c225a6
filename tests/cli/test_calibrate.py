"""`hf-diversed calibrate` on the embedded pair: the strictness is saved in the head's folder and used from there."""

import json
import shutil

import pytest

from hf_diversed import load_demo_pair
from hf_diversed.zoo import embedded_head
from tests.commands import run, succeed


@pytest.fixture
def head(tmp_path, monkeypatch):
    """A copy of the embedded head; two strictness values are tested."""
    monkeypatch.setattr("hf_diversed.evaluation.calibrate.STRICTNESSES", (0.5, 0.05))
    return shutil.copytree(embedded_head("math"), tmp_path / "head")


SHORT = ("--num-examples", "8", "--samples-per-prompt", "1", "--max-new-tokens", "4")


def test_writes_what_generate_uses(head):
    """Catches a result that is not saved, other settings or weights that change, a card that is overwritten, and
    figures at the earlier strictness that would be published.

    Four tokens contain no answer, so no strictness has a drop; eight prompts suffice for a limit of 0.9.
    """
    before, weights = json.loads((head / "config.json").read_text()), (head / "model.safetensors").read_bytes()
    (head / "README.md").write_text("my card")
    (head / "evaluation.json").write_text("{}")
    options = ("--max-quality-drop", "0.9", "--confidence", "0.9")
    result = succeed("calibrate", head, *SHORT, *options)  # the task is the head's
    assert "The head's default strictness is now 0.05: a drop of at most 0.9" in result.stderr
    after = json.loads((head / "config.json").read_text())
    found = after["calibration"]
    assert after == before | {"calibration": found, "strictness": 0.05}
    assert (found["max_quality_drop"], found["strictness"], found["num_prompts"]) == (0.9, 0.05, 8)
    assert (head / "README.md").read_text() == "my card"
    assert not (head / "evaluation.json").exists()
    assert (head / "model.safetensors").read_bytes() == weights
    pair = load_demo_pair()
    inputs = pair.tokenizer("Question: 1 + 1?", return_tensors="pt")
    call = {**inputs, "assistant_model": pair.draft, "diversed_head": str(head), "do_sample": True, "top_k": 0}
    out = pair.target.generate(**call, max_new_tokens=4, return_dict_in_generate=True)
    assert out.stats.strictness == 0.05
    assert (head / "calibration" / "math_temperature-1_gamma-5").is_dir()


def test_a_failure_changes_nothing(head):
    """Catches a head that is written although no strictness passed, and exit code 0: eight prompts are too few."""
    before = (head / "config.json").read_bytes()
    result = run("calibrate", head, *SHORT, "--max-quality-drop", "0.01", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["strictness"] is None
    assert "No strictness was found for a drop of 0.01, so the head is unchanged." in result.stderr
    assert (head / "config.json").read_bytes() == before
