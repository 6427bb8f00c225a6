"""Checkpoints are complete or do not exist."""

import json
import os
import shutil
from pathlib import Path

import pytest

from hf_diversed.training import checkpoints
from hf_diversed.training.checkpoints import SAVING, resume_point
from tests.training.short_runs import check_resumed, same, trainer


def test_resume_point_is_the_highest_step(tmp_path):
    """Catches sorting by name (checkpoint-8 after checkpoint-16), and an error for a missing folder."""
    assert resume_point(tmp_path / "new") is None
    assert resume_point(tmp_path) is None
    for step in (4, 8, 16):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / SAVING / "checkpoint-32").mkdir(parents=True)
    assert resume_point(tmp_path) == str(tmp_path / "checkpoint-16")


def test_a_folder_without_the_optimizer_is_refused(unbroken, tmp_path):
    """Catches a run that continues with a new optimizer, from the folder of the finished head."""
    with pytest.raises(ValueError, match=rf"has no optimizer.pt, .* pass {unbroken}/checkpoint-"):
        trainer(tmp_path).train(resume_from_checkpoint=str(unbroken))
    with pytest.raises(ValueError, match=r"folder .*none does not exist"):
        trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=f"belongs to the run in {unbroken}, not to"):  # it has the best head
        trainer(tmp_path).train(resume_from_checkpoint=str(unbroken / "checkpoint-6"))


def test_an_interrupted_first_save_does_not_count(unbroken, tmp_path, monkeypatch):
    """Catches a run that cannot start after its first save was killed; test_resume.py kills later ones."""

    def killed(unfinished: Path, folder: Path) -> None:
        (unfinished / "remains").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            trainer(tmp_path).train()
    assert resume_point(tmp_path) is None
    check_resumed(tmp_path, 0, unbroken / "checkpoint-6")
    assert not list(tmp_path.rglob("remains"))


def test_older_checkpoints_remain_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    """Catches a rotation before the new files are on the disk: a kill in between would leave no checkpoint."""
    synced, present, inner, publish = [], [], os.fsync, checkpoints.publish

    def fsync(handle):
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        inner(handle)

    def look(unfinished: Path, folder: Path) -> None:
        present.append(sorted(path.name for path in tmp_path.glob("checkpoint-*")))
        written = {unfinished, *unfinished.iterdir()}
        synced.clear()
        publish(unfinished, folder)
        assert set(synced[:-1]) == written
        assert synced[-1] == tmp_path

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(checkpoints, "publish", look)
    trainer(tmp_path, save_total_limit=1).train()
    assert present == [[], ["checkpoint-2"], ["checkpoint-4"]]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]


def test_the_state_names_the_best_checkpoint(unbroken_best):
    """Catches the path of the temporary folder, which a resumed run reports as missing."""
    state = json.loads((unbroken_best / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(unbroken_best / "checkpoint-2")


def test_a_run_resumed_with_another_metric_selects_by_it(unbroken_best, tmp_path):
    """Catches values of different metrics that are compared: no later head could be the best."""
    moved = shutil.copytree(unbroken_best, tmp_path / "moved")
    shutil.rmtree(moved / "checkpoint-6")
    path = moved / "checkpoint-4" / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"best_metric": 3.5}))  # a block efficiency
    resumed = trainer(moved, evaluated=True)
    resumed.train(resume_from_checkpoint=True)
    (reward,) = (
        line["eval_reward"] for line in resumed.state.log_history if line["step"] == 6 and "eval_reward" in line
    )
    assert (resumed.state.best_metric, resumed.state.best_global_step) == (reward, 6)


def test_the_best_checkpoint_is_found_in_a_moved_folder(unbroken_best, tmp_path):
    """Catches a best head that is loaded from the folder where the run was started, or from a temporary one."""
    moved = shutil.copytree(unbroken_best, tmp_path / "moved")
    resumed = trainer(moved, evaluated=True)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.best_model_checkpoint == str(moved / "checkpoint-2")
    assert same(resumed.model, unbroken_best / "final")
