"""Files on a full disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from hf_diversed.files import WriteError, append_lines, write_json


def test_full_disk(tmp_path, monkeypatch):
    """Catches 'No space left on device' without the name of a file, a folder that is not created, a report that is
    destroyed by one that could not be written, and incomplete files that remain."""
    with pytest.raises(
        WriteError, match=r"/dev/full could not be written: .*No space left .*Free some space, or choose"
    ):
        append_lines(Path("/dev/full"), [{"text": "ä"}])
    path = tmp_path / "a" / "b" / "report.json"
    write_json(path, {"records": [1]})

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match=r"report\.json could not be written"):
        write_json(path, {"records": [2]})
    assert json.loads(path.read_text()) == {"records": [1]}
    assert list(path.parent.iterdir()) == [path]
