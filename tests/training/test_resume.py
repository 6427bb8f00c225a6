"""Runs that are killed with SIGKILL and resumed end exactly where an undisturbed run ends.

A few kills by default: one at each place in `PAUSES`, and two at random moments. `make faults` runs more.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.training.driver import PAUSES


NUM_KILLS = int(os.environ.get("HF_DIVERSED_KILLS", "9"))
SEED = 5
REPOSITORY = Path(__file__).parents[2]


class Runs(NamedTuple):
    """The folders of an uninterrupted and an interrupted run, and the kills."""

    unbroken: Path
    broken: list[Path]
    kills: list[dict]


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "tests.training.driver", str(folder), str(SEED), str(NUM_KILLS)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["finished"]
    return Runs(folder / "unbroken", [folder / name for name in report["finished"]], report["kills"])


def test_kills_hit_critical_places(killed):
    """Catches a driver that kills too rarely, or never during a save or the measurement of reference rewards."""
    assert len(killed.kills) == NUM_KILLS
    assert sum(kill["in_save"] for kill in killed.kills) >= 3
    assert {kill["pause"] for kill in killed.kills} >= set(PAUSES)
    assert any(kill["pause"] == "reward" and not kill["in_save"] for kill in killed.kills)
    assert any(kill["pause"] is None for kill in killed.kills)


def test_last_head_is_bitwise_that_of_the_unbroken_run(killed):
    """Catches rollouts that depend on where the process started, and a best head of an interrupted save."""
    for run in killed.broken:
        for folder in (".", "checkpoint-16"):
            found, expected = ((path / folder / "model.safetensors").read_bytes() for path in (run, killed.unbroken))
            assert found == expected


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_state_files_are_bitwise_those_of_the_unbroken_run(killed, name: str):
    """Catches an optimizer, a learning rate or a random state that is reset."""
    for run in killed.broken:
        found, expected = (_load(path / "checkpoint-16" / name) for path in (run, killed.unbroken))
        assert _plain(found) == _plain(expected)


def test_multiplier_references_and_log_are_those_of_the_unbroken_run(killed):
    """Catches a lost coefficient or mean, references drawn with other seeds, and duplicated log lines."""
    expected = json.loads((killed.unbroken / "final.json").read_text())
    assert len(expected["constraint"]["attributes"]["batches"]) == 8
    assert len(expected["references"]) == 10
    for run in killed.broken:
        found = json.loads((run / "final.json").read_text())
        for part, value in expected.items():
            assert found[part] == value, part


def test_same_checkpoints_remain_and_all_are_complete(killed):
    """Catches an incomplete checkpoint, and a rotation that removes other checkpoints after an interruption."""

    def files(run: Path) -> dict[str, set[str]]:
        return {folder.name: {path.name for path in folder.iterdir()} for folder in run.glob("checkpoint-*")}

    for run in killed.broken:
        assert files(run) == files(killed.unbroken)


def _load(path: Path):
    return torch.load(path, weights_only=False)  # numpy's random state is no tensor


def _plain(value):
    """Tensors as bytes, so that == compares bits."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
