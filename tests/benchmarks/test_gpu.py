"""`make gpu`: its steps, their files, and how a run continues."""

from benchmarks import gpu


def test_runs_a_step_per_missing_file(tmp_path, monkeypatch):
    """Catches a step with arguments that the benchmark refuses, shapes that do not exist, and repeated steps."""
    run = []

    def main(arguments):
        parsed = gpu.speed.arguments_parser().parse_args(arguments)
        assert parsed.device == "cuda"
        assert {parsed.target_config, parsed.draft_config} <= set(gpu.speed.shape_names())
        run.append(parsed.output)
        parsed.output.touch()

    monkeypatch.setattr(gpu.speed, "main", main)
    monkeypatch.setattr(gpu, "OUTPUT", tmp_path)
    monkeypatch.setattr(gpu.gc, "collect", lambda: None)  # slow
    (tmp_path / f"{gpu.STEPS[0]}.json").touch()
    for _ in range(2):
        gpu.main()
    assert run == [tmp_path / f"{name}.json" for name in gpu.STEPS[1:]]
