"""`benchmarks/phases.py`: one part of an answer is relaxed, the rest is not."""

import json
import sys

from benchmarks import phases


def test_parts_accept_less_than_the_whole(tmp_path, monkeypatch):
    """Catches tokens that do not occur, and parts that are not exchanged."""
    monkeypatch.setattr(phases, "WEIGHTS", (0.1,))
    monkeypatch.setattr(sys, "argv", ["phases", "--output", str(tmp_path / "phases.json"), "--num-examples", "32"])
    phases.main()
    records = json.loads((tmp_path / "phases.json").read_text())["records"]
    accepted = {record["method"]: record["acceptance_rate"] for record in records}
    whole, inside, outside = (accepted[f"static:0.1{part}"] for part in ("", " inside", " outside"))
    assert accepted["lossless"] < inside < whole
    assert accepted["lossless"] < outside < whole
    assert inside != outside
