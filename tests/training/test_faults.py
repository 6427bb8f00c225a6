"""What goes wrong around a run, one thing at a time: each ends in a message with advice, or is survived, and
a run that goes on afterwards ends with the weights of one that nothing happened to."""

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import SafetensorError

from hf_diversed.files import WriteError
from hf_diversed.training import run_folder
from tests.training import runs
from tests.training.short_runs import check_resumed, same, trainer


# The disk


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small file system with room for one checkpoint, but not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=56k", "tmpfs", str(folder)):
        pytest.skip("mounting a file system is not permitted here; the faked failures below stand in for it")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mounted(*arguments: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def test_full_disk(unbroken, disk):
    """Catches 'basic_ios::clear: iostream error' of torch instead of the full disk and the file's name."""
    full = trainer(disk / "run")
    words = r"checkpoint-\d could not be written: .* 0\.0 MiB are free there\. Free some space"
    with pytest.raises(WriteError, match=words):
        full.train()
    saved = full.state.global_step - 2
    assert saved >= 2
    assert mounted("-o", "remount,size=1m", str(disk))
    check_resumed(disk / "run", saved, unbroken / "checkpoint-6")


FAILURES = {
    "system": OSError(errno.ENOSPC, "No space left on device"),
    "torch": RuntimeError("basic_ios::clear: iostream error"),
    "safetensors": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
}


@pytest.mark.parametrize(
    ("place", "name"),
    [("_save", "safetensors"), ("_save_optimizer_and_scheduler", "torch"), ("_save_rng_state", "system")],
)
def test_failing_save(unbroken, tmp_path, monkeypatch, place: str, name: str):
    """Catches errors of torch and safetensors for a full disk, and a failed save that damages the previous one."""
    failing = trainer(tmp_path)
    inner = getattr(failing, place)

    def save(*args, **kwargs):
        if failing.state.global_step == 4:
            raise FAILURES[name]
        return inner(*args, **kwargs)

    monkeypatch.setattr(failing, place, save)
    with pytest.raises(WriteError, match=r"checkpoint-4 could not be written: .*(iostream|No space).*Free some space"):
        failing.train()
    check_resumed(tmp_path, 2, unbroken / "checkpoint-6")


@pytest.mark.parametrize("call", ["save_model", "save_state"])
def test_failing_last_save(tmp_path, monkeypatch, call: str):
    """Catches an error without a file name when a finished run saves its head and its log."""
    failing = trainer(tmp_path)

    def fail(*args, **kwargs):
        raise FAILURES["system"]

    monkeypatch.setattr(failing.model, "save_pretrained", fail)
    monkeypatch.setattr(type(failing.state), "save_to_json", fail)
    with pytest.raises(WriteError, match=f"{tmp_path}.* could not be written"):
        getattr(failing, call)()


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """Catches a missing check where no disk can be mounted above."""

    def fail(**_):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(run_folder.tempfile, "TemporaryFile", fail)
    with pytest.raises(WriteError, match=f"{tmp_path} could not be written: .*Permission denied"):
        trainer(tmp_path)


def test_a_file_where_the_folder_should_be(tmp_path):
    """Catches the bare error 'File exists'."""
    (tmp_path / "run").touch()
    with pytest.raises(WriteError, match=r"run could not be written: .*File exists.* choose a folder"):
        trainer(tmp_path / "run")


# Two runs


def test_second_run_in_one_folder(unbroken, tmp_path):
    """Catches two runs that write each other's checkpoints."""
    refused = []

    def reward(completions, **columns):
        if not refused:
            with pytest.raises(OSError, match=r"another run is training in .*wait until it ends, or choose another"):
                trainer(tmp_path).train(resume_from_checkpoint=True)
            refused.append(True)
        return runs.letters(completions)

    first = trainer(tmp_path, reward)
    first.train()
    assert refused
    assert same(first.model, unbroken / "checkpoint-6")
    trainer(tmp_path).train(resume_from_checkpoint=True)


# Files beside the checkpoints


@pytest.mark.parametrize("content", [b"", b'{"settings": {"a', b"\xff\xfe\x00", b"[]", b'{"settings": {}}'])
def test_damaged_references(tmp_path, content: bytes):
    """Catches 'Unterminated string starting at: line 1 column 49' as the only message about a damaged file."""
    (tmp_path / "reference_rewards.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"reference_rewards\.json is damaged .*; remove it to measure"):
        trainer(tmp_path, acceptance_coef=None).train()
