"""What counts as a checkpoint: nothing that was interrupted, and nothing that was changed."""

import json
import os
from pathlib import Path

import pytest

from hf_diversed.training.checkpoints import MARKER, damage, newest_complete, seal


def checkpoint(run: Path, step: int) -> Path:
    folder = run / f"checkpoint-{step}"
    (folder / "deeper").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes([step % 256]) * 100)
    (folder / "deeper" / "state.json").write_text("{}")
    (folder / "empty").touch()
    return folder


@pytest.fixture
def sealed(tmp_path) -> Path:
    folder = checkpoint(tmp_path, 8)
    seal(folder)
    return folder


def test_sealed_one_is_complete(sealed):
    """Catches a marker that lists itself, or leaves out files in folders."""
    assert damage(sealed) is None
    listed = json.loads((sealed / MARKER).read_text())["sha256"]
    assert set(listed) == {"model.safetensors", str(Path("deeper") / "state.json"), "empty"}


def test_sealing_twice_changes_nothing(sealed):
    before = (sealed / MARKER).read_bytes()
    seal(sealed)
    assert (sealed / MARKER).read_bytes() == before


def test_unsealed_one_was_interrupted(tmp_path):
    assert damage(checkpoint(tmp_path, 8)) == "its save was interrupted (no complete.json)"


def _truncate(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08" * 99)


def _flip(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08" * 99 + b"\x09")


DAMAGES = {
    "truncated": (_truncate, "model.safetensors was changed after the save"),
    "one byte": (_flip, "model.safetensors was changed after the save"),
    "missing": (lambda folder: (folder / "deeper" / "state.json").unlink(), "state.json is missing"),
    "missing empty": (lambda folder: (folder / "empty").unlink(), "empty is missing"),
    "half a marker": (lambda folder: (folder / MARKER).write_text('{"sha256": {"mod'), "cannot be read"),
    "empty marker": (lambda folder: (folder / MARKER).write_text(""), "cannot be read"),
    "another marker": (lambda folder: (folder / MARKER).write_text('{"sha256": 3}'), "cannot be read"),
    "a list": (lambda folder: (folder / MARKER).write_text("[]"), "cannot be read"),
    "binary marker": (lambda folder: (folder / MARKER).write_bytes(b"\xff\xfe"), "cannot be read"),
}


@pytest.mark.parametrize(("harm", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named(sealed, harm, message: str):
    """Catches a damaged checkpoint that counts, or an exception in place of a reason."""
    harm(sealed)
    assert message in damage(sealed)


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_kill_while_sealing(tmp_path, monkeypatch, function: str):
    """Catches a marker that is there before it is whole, and one whose remains damage the next save to the folder."""
    folder = checkpoint(tmp_path, 8)

    class KilledError(Exception):
        pass

    def die(*_args):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", die) if function == "fsync" else patch.setattr(Path, "replace", die)
        with pytest.raises(KilledError):
            seal(folder)
    assert "interrupted" in damage(folder)
    seal(folder)
    assert damage(folder) is None


def test_saving_again_into_a_damaged_one(sealed):
    """Catches a stale marker that makes a rewritten checkpoint damaged, or a half rewritten one complete."""
    _flip(sealed)
    assert damage(sealed) is not None
    seal(sealed)
    assert damage(sealed) is None


def test_newest_complete_passes_over_the_damaged(tmp_path):
    """Catches an order by name (checkpoint-8 after checkpoint-16) and a damaged one that is not reported."""
    for step in (4, 8, 16, 100):
        seal(checkpoint(tmp_path, step))
    (tmp_path / "checkpoint-100" / MARKER).unlink()
    found, damaged = newest_complete(tmp_path)
    assert found == tmp_path / "checkpoint-16"
    assert {folder.name: "interrupted" in problem for folder, problem in damaged.items()} == {"checkpoint-100": True}


def test_older_damaged_ones_do_not_matter(tmp_path):
    """Catches hashing, and complaining about, checkpoints that nobody will go on from."""
    checkpoint(tmp_path, 4)
    seal(checkpoint(tmp_path, 8))
    assert newest_complete(tmp_path) == (tmp_path / "checkpoint-8", {})


@pytest.mark.parametrize("there", [True, False], ids=["empty", "not there"])
def test_no_run_yet(tmp_path, there: bool):
    """Catches a first start under --resume that fails for want of a folder."""
    assert newest_complete(tmp_path if there else tmp_path / "new") == (None, {})


def test_all_damaged(tmp_path):
    checkpoint(tmp_path, 4), checkpoint(tmp_path, 8)
    found, damaged = newest_complete(tmp_path)
    assert found is None
    assert [folder.name for folder in damaged] == ["checkpoint-8", "checkpoint-4"]
