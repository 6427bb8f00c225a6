"""Files on a full disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from hf_diversed.files import WriteError, append_lines, write_json


ENTRIES = [{"text": "ä"}]


def test_full_disk():
    """Catches 'No space left on device' without the name of a file."""
    with pytest.raises(
        WriteError, match=r"/dev/full could not be written: .*No space left .*Free some space, or choose"
    ):
        append_lines(Path("/dev/full"), ENTRIES)


def test_a_report_creates_its_folder(tmp_path):
    """Catches a benchmark that fails after hours because the folder of --output does not exist."""
    write_json(tmp_path / "a" / "b" / "report.json", {"records": []})
    assert json.loads((tmp_path / "a" / "b" / "report.json").read_text()) == {"records": []}


def test_full_disk_at_a_report(tmp_path, monkeypatch):
    """Catches a report that is destroyed by one that could not be written, and incomplete files that remain."""
    path = tmp_path / "report.json"
    write_json(path, {"records": [1]})

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match=r"report\.json could not be written"):
        write_json(path, {"records": [2]})
    assert json.loads(path.read_text()) == {"records": [1]}
    assert list(tmp_path.iterdir()) == [path]
