"""`make gpu` on the CPU: its steps, their files, and how a run continues."""

from benchmarks import gpu


def test_all_steps_are_in_the_arguments_of_the_benchmark():
    """Catches a step name that cannot be parsed, and shapes that do not exist."""
    for name in gpu.STEPS:
        parsed = gpu.rounds.arguments_parser().parse_args(gpu.arguments(name, None))
        assert parsed.device == "cuda"
        assert {parsed.target_config, parsed.draft_config} <= set(gpu.rounds.shape_names())
