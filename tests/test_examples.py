"""Every example runs, in this process."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_diversed import load_demo_pair


SHORTER = {
    "train_head.py": ["--max-steps", "4", "--rollouts", "16", "--num-prompts", "8", "--num-examples", "4"],
    "rl_rollouts.py": ["--updates", "1", "--prompts", "4", "--group", "4"],
}
ALL = (Path(__file__).parent.parent / "examples").glob("*.py")
EXAMPLES = sorted(path for path in ALL if path.name != "convert_authors_head.py")  # needs a file; it has its own tests


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path, run_script, capsys):
    """Catches an example for an older API."""
    run_script(path, *SHORTER.get(path.name, []))
    printed = capsys.readouterr().out
    assert "accepted" in printed
    if path.name == "rl_rollouts.py":  # lossless by default; relaxed rollouts leave fewer effective samples
        assert "effective sample size 100%" in printed


def test_rollouts_without_importance_weights_are_refused(run_script, capsys):
    """Catches rollouts of a verifier without log-probabilities, whose weights would all be wrong."""
    path = Path(__file__).parent.parent / "examples" / "rl_rollouts.py"
    with pytest.raises(SystemExit, match=r"^2$"):
        run_script(path, "--verifier", "lenience:0.3", "--updates", "1")
    assert "'lenience:0.3' has no emitted distribution" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")  # those of TRL
def test_tuned_draft_is_an_ordinary_model(run_script, tmp_path, capsys):
    """Catches a TRL release that changes the trainer, an adapter in the saved files, and weights without updates."""
    pytest.importorskip("trl", reason="the recipe needs TRL, which needs Python 3.11: pip install trl")
    path = Path(__file__).parent.parent / "examples" / "recipes" / "tune_draft.py"
    sizes = ["--max-steps", "1", "--batch-size", "2", "--num-prompts", "2", "--num-examples", "2"]
    run_script(path, *sizes)
    assert re.search(r"^after 1 updates in \d+ s: \d+\.\d% accepted", capsys.readouterr().out, re.MULTILINE)
    before, tuned = load_demo_pair().draft, AutoModelForCausalLM.from_pretrained(tmp_path / "tuned-draft")
    assert tuned.state_dict().keys() == before.state_dict().keys()
    changed = {name for name, value in tuned.state_dict().items() if not torch.equal(value, before.state_dict()[name])}
    assert changed == {name for name in before.state_dict() if name.endswith("_proj.weight")}
