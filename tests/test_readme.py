"""The README says what the results say, and what the code is."""

import json
import re
from pathlib import Path

import pytest

import hf_diversed
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS
from tools.render_readme import RESULTS, render


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_figures_are_rendered_from_results():
    """Catches figures typed by hand, and results without `make results`."""
    assert render(README) == README
    for name in ("pair", "compiled", "adaptive", "speed"):
        section = re.search(f"<!-- begin:{name} -->(.*?)<!-- end:{name} -->", README, re.DOTALL)
        assert section is not None
        assert re.search(r"\d", section.group(1))


@pytest.mark.parametrize("task", ["math", "summary", "code"])
@pytest.mark.parametrize(
    ("kind", "logs"), [(HEADS, RESULTS / "training"), (MIXTURE, RESULTS / "mixture" / "training")]
)
def test_packaged_heads_are_what_their_runs_chose(kind, logs, task):
    """Catches a head picked by hand, and a log of another run beside it."""
    paths = WEIGHTS / kind / task / "provenance.json", logs / f"{task}.json"
    made, log = (json.loads(path.read_text()) for path in paths)
    assert made["step"] == log["best_global_step"]
    assert made["training"]["max_steps"] == log["global_step"]
    chosen = next(line for line in log["log_history"] if line["step"] == made["step"] and "eval_objective" in line)
    assert made["validation"]["objective"] == chosen["eval_objective"] == log["best_metric"]


def test_every_rule_has_a_line():
    """Catches a registered rule that nobody can find."""
    for rule in hf_diversed.VERIFIERS.values():
        assert f"`{rule.__name__}(" in README


def test_file_tree_is_the_file_tree():
    """Catches modules that are named in the tree and gone, or there and not named."""
    tree = README.split("hf_diversed/\n", 1)[1].split("```", 1)[0]
    for path in sorted((ROOT / "hf_diversed").glob("*.py")) + sorted((ROOT / "hf_diversed/generation").glob("*.py")):
        if not path.name.startswith("__") and path.name != "_version.py":
            assert path.name in tree, path.name
    for name in re.findall(r"(\w+\.py)", tree):
        assert list((ROOT / "hf_diversed").rglob(name)), name


def test_public_names_exist():
    """Catches an `__all__` that promises what is not there."""
    for name in hf_diversed.__all__:
        assert hasattr(hf_diversed, name)
