"""`make gpu` on the CPU: its steps, their files, and how a run continues."""

import json

import pytest

from benchmarks import gpu
from tests import tiny


def test_dry_run_writes_a_file_per_step_and_continues(tmp_path, monkeypatch):
    """Catches steps with rejected arguments, figures that are written at the end only, and repeated steps."""
    config = tiny.tiny_model("llama").config
    config.num_hidden_layers = 1
    config.save_pretrained(tmp_path)
    steps = ["llama-0.7-batch-1-eager", "qwen-0.85-batch-8-compiled"]
    folder = tmp_path / "gpu"
    call = ["--dry-run", str(tmp_path / "config.json"), "--output", str(folder), "--steps", ",".join(steps)]
    gpu.main(call)
    found = {path.stem: json.loads(path.read_text()) for path in folder.iterdir()}
    assert found.keys() == set(steps)
    methods = [record["method"] for record in found[steps[1]]["records"]]
    assert set(methods) >= {"compiled:target", "compiled:lossless"}
    monkeypatch.setattr(gpu.speed, "main", lambda argv: pytest.fail("a finished step was repeated"))
    gpu.main(call)


def test_all_steps_are_in_the_arguments_of_the_benchmark():
    """Catches a step name that cannot be parsed, and shapes that do not exist."""
    for name in gpu.STEPS:
        parsed = gpu.speed.arguments_parser().parse_args(gpu.arguments(name, None))
        assert parsed.device == "cuda"
        assert {parsed.target_config, parsed.draft_config} <= set(gpu.speed.shape_names())
