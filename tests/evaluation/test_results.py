"""Results on disk after a kill, on a full disk, and with damaged files."""

import errno
import json
import os
from pathlib import Path

import pytest

from hf_diversed.evaluation.results import open_file, read_results
from hf_diversed.files import WriteError, append_lines, write_json


HEADER = {"task": "letters", "num_batches": 3, "settings": {"samples_per_prompt": 1}}
ENTRIES = [{"method": "target", "batch": batch, "sample": 0, "text": f"ä {batch}"} for batch in range(3)]


@pytest.fixture
def folder(tmp_path) -> Path:
    append_lines(open_file(tmp_path, 0, HEADER), ENTRIES)
    return tmp_path


def test_a_truncated_file_can_be_continued(folder):
    """Catches an incomplete line or header after which the run cannot continue, or that removes a complete line."""
    path = folder / "batches-0.jsonl"
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole = content[:length].count(b"\n")
        if whole:
            assert len(read_results(folder, HEADER).entries) == whole - 1
        append_lines(open_file(folder, 0, HEADER), ENTRIES[max(whole - 1, 0) :])
        assert path.read_bytes() == content


DAMAGES = {
    "no text": (b'"batch": 1', b'"batch": \xff', "line 3 is not JSON"),
    "zeros": (b'"batch": 1', b"\x00" * 10, "line 3 is not JSON"),
    "no object": (
        b'{"method": "target", "batch": 2',
        b'[2]\n{"method": "target", "batch": 2',
        "line 4 must be a JSON",
    ),
    "no entry": (b'"batch": 1', b'"match": 1', "line 3 lacks batch"),
    "no header": (b'{"task"', b'[]\n{"task"', r"line 1 must be a JSON object, got \[\]"),
}


@pytest.mark.parametrize(("old", "new", "words"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_named_with_its_line(folder, old: bytes, new: bytes, words: str):
    """Catches "'utf-8' codec can't decode byte", or a KeyError, as the only message about a damaged file."""
    path = folder / "batches-0.jsonl"
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(ValueError, match=rf"batches-0\.jsonl, {words}.*; remove the line"):
        read_results(folder)


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
