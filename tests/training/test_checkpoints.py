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


def test_an_older_checkpoint_is_refused(unbroken):
    """Catches steps that the next resume abandons, because an earlier run has a checkpoint with more steps."""
    with pytest.raises(ValueError, match=r"checkpoint-4 is not the newest .* remove .*checkpoint-6 first"):
        trainer(unbroken).train(resume_from_checkpoint=str(unbroken / "checkpoint-4"))


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


@pytest.mark.parametrize("best", [2, 4, 6])
def test_a_resumed_run_selects_by_its_own_metric(unbroken_best, tmp_path, best):
    """Catches values of different metrics that are compared, and steps before the resumed one that are ignored."""
    moved = shutil.copytree(unbroken_best, tmp_path / "moved")
    shutil.rmtree(moved / "checkpoint-6")
    path = moved / "checkpoint-4" / "trainer_state.json"
    state = json.loads(path.read_text()) | {"best_metric": 3.5, "best_global_step": 4}  # a block efficiency
    for line in state["log_history"]:
        if "eval_reward" in line:
            line["eval_reward"] = 9.0 if line["step"] == best else -1.0
    path.write_text(json.dumps(state))
    resumed = trainer(moved, evaluated=True)
    resumed.train(resume_from_checkpoint=True)
    rewards = {line["step"]: line["eval_reward"] for line in resumed.state.log_history if "eval_reward" in line}
    assert (resumed.state.best_metric, resumed.state.best_global_step) == (rewards[best], best)
    assert resumed.state.best_model_checkpoint == str(moved / f"checkpoint-{best}")


def test_a_resumed_run_selects_by_its_own_limit(tmp_path):
    """Catches the objective of the earlier limit, a step without a checkpoint, and one without a drop."""
    constrained = {"acceptance_coef": None, "max_quality_drop": 0.1, "metric_for_best_model": "objective"}
    resumed = trainer(tmp_path, evaluated=True, **constrained)
    measured = {2: (0.02, 0.5), 4: (0.06, 0.7), 6: (0.11, 0.8), 8: (0.02, 0.9)}  # drop and acceptance
    for step, (drop, acceptance) in measured.items():
        values = {"reward": 0.5, "acceptance_rate": acceptance, "quality_drop": drop, "quality_drop_error": 0.01}
        values["objective"] = acceptance if drop + 0.01 <= 0.05 else -drop - 0.01  # with a limit of 0.05
        resumed.state.log_history.append({f"eval_{name}": value for name, value in values.items()} | {"step": step})
    resumed.state.log_history.append({"eval_objective": 2.0, "eval_acceptance_rate": 1.0, "step": 10})
    for step in (2, 4, 6, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    resumed._select_best()
    assert (resumed.state.best_metric, resumed.state.best_global_step) == (0.7, 4)
    assert resumed.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    resumed.args.load_best_model_at_end = False
    resumed._select_best()
    assert (resumed.state.best_global_step, resumed.state.best_model_checkpoint) == (8, None)


def test_the_best_checkpoint_is_found_in_a_moved_folder(unbroken_best, tmp_path):
    """Catches a best head that is loaded from the folder where the run was started, or from a temporary one."""
    moved = shutil.copytree(unbroken_best, tmp_path / "moved")
    resumed = trainer(moved, evaluated=True)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.best_model_checkpoint == str(moved / "checkpoint-2")
    assert same(resumed.model, unbroken_best / "final")
