"""`benchmarks/serving.py` and the page with its figures. tests/vllm runs what it measures."""

import pytest

from benchmarks.serving import step_costs


def test_costs_are_compared_with_neighbouring_steps():
    """Catches a machine that slows down, or a run that starts with the plugin, counted as the plugin's cost."""
    drifting = [0.01 * (1.0 + at / 50) * (1.1 if at % 2 == 0 else 1.0) for at in range(51)]
    found = step_costs([drifting, drifting])
    assert found["added"] == pytest.approx(0.1, abs=1e-3)
    assert found["ms_with"] > found["ms_without"]
