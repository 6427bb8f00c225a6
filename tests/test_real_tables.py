"""Tables of the SmolLM2 study, rendered from invented results."""

import json

from tests.evaluation.measured import record
from tools.render_real import COMMANDS, gains, real


def turns(*seconds: float) -> dict:
    return {"turns": [{"tokens": 60.0, "seconds": value} for value in seconds]}


def made_up(**given) -> dict:
    head = "diversed:build/real/lookup/head-token-aware"
    figures = (("target", None, 0.2), ("lossless", 0.25, 0.21), (head, 0.75, 0.22))
    drops = {"lossless": [-0.02, 0.02], head: [0.01, 0.03]}
    setting = {"metric": "rouge2", "max_new_tokens": 64, "quality_drop": None}
    quality = [
        record(*row, block_efficiency=row[1] and 2.345, quality_drop_ci=drops.get(row[0]), **setting)
        for row in figures
    ]
    single = {"target": turns(6, 12, 6), "upstream": turns(3, 3, 3), "lossless": turns(4, 6, 3), head: turns(3, 4, 2)}
    single |= {"target, compiled": turns(4, 4, 4), "lossless, compiled": turns(2, 4, 1)}
    seconds = [
        {"batch_size": 1, "methods": single},
        {"batch_size": 8, "methods": {"target": turns(6), "lossless": turns(12)}},
    ]
    found = {"regime": "lookup", "task": "scitldr", "quality": quality, "seconds": seconds}
    settings = {"dtype": "bfloat16", "timed_prompts": 8, "repeats": 3}
    source = {"device": "some CPU", "threads": 1}
    return {"settings": settings, "records": [found], "provenance": source} | given


def test_gains_are_over_plain_decoding_of_the_same_engine_and_turn(tmp_path):
    """Catches compiled speed divided by eager speed, medians over other turns, and a method under another name."""
    (tmp_path / "lookup-scitldr.json").write_text(json.dumps(made_up()))
    ((heading, text),) = real(tmp_path)
    assert heading == "scitldr, prompt lookup"
    lines = text.splitlines()
    assert lines[2].endswith("| speedup, batch 1 | speedup, compiled, batch 1 | speedup, batch 8 |")
    by_method = {line.split(" | ")[0].strip("| "): line.split(" | ")[-3:] for line in lines[4:-2]}
    assert by_method["`target`"] == ["1.00x (1.00 to 1.00)"] * 2 + ["1.00x |"]
    assert by_method["`lossless`"] == ["2.00x (1.50 to 2.00)", "2.00x (1.00 to 4.00)", "0.50x |"]
    assert by_method["a token head"] == ["3.00x (2.00 to 3.00)", "-", "- |"]
    assert by_method["transformers' assisted generation"][0] == "2.00x (2.00 to 4.00)"
    assert "some CPU, 1 thread(s)" in lines[0]
    assert lines[-1] == f"Measured by `{COMMANDS['lookup-scitldr.json']}`."


def test_gains_are_medians_over_turns(tmp_path):
    """Catches figures of the compiled engine, and ratios of different turns."""
    path = tmp_path / "lookup-scitldr.json"
    assert list(real(tmp_path)) == []
    path.write_text(json.dumps(made_up()))
    assert gains(path, ["lossless", "upstream"]) == ["2.00x (1.50 to 2.00)", "2.00x (2.00 to 4.00)"]
