"""The calls of `calls.py` on this tree and on another revision: same tokens, statistics, scores and records.

For changes that must not change behaviour:
`HF_DIVERSED_REVISION=main~3 python -m pytest -m slow tests/generation/test_against_revision.py`.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
REVISION = os.environ.get("HF_DIVERSED_REVISION", "")
# Names of calls, separated by commas, that the change is meant to change.
MAY_DIFFER = {name for name in os.environ.get("HF_DIVERSED_MAY_DIFFER", "").split(",") if name}


def _run(tree: Path, output: Path) -> dict:
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.generation.calls", str(output)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    return json.loads(output.read_text())


@pytest.mark.slow
@pytest.mark.skipif(not REVISION, reason="HF_DIVERSED_REVISION names no revision to compare with")
def test_calls_are_those_of_another_revision(tmp_path):
    """Catches a rewrite that moves a random number, a float's last bit, or a counter."""
    other = tmp_path / "other"
    archive = tmp_path / "tree.tar"
    subprocess.run(["git", "archive", "-o", str(archive), REVISION], cwd=ROOT, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(other, filter="data")
    (other / "tests/generation/calls.py").write_text((ROOT / "tests/generation/calls.py").read_text())
    theirs, ours = _run(other, tmp_path / "theirs.json"), _run(ROOT, tmp_path / "ours.json")
    assert len(ours) > 150
    different = {name for name, result in theirs.items() if ours[name] != result}
    assert different <= MAY_DIFFER
