"""`benchmarks/serving.py` and the page with its figures. tests/vllm runs what it measures."""

import pytest

from benchmarks.load import OUTCOMES, Request, streamed
from benchmarks.serving import step_costs


def test_costs_are_compared_with_neighbouring_steps():
    """Catches a machine that slows down, or a run that starts with the plugin, counted as the plugin's cost."""
    drifting = [0.01 * (1.0 + at / 50) * (1.1 if at % 2 == 0 else 1.0) for at in range(51)]
    found = step_costs([drifting, drifting])
    assert found["added"] == pytest.approx(0.1, abs=1e-3)
    assert found["ms_with"] > found["ms_without"]


END = b'data: {"choices": [{"finish_reason": "stop"}], "metrics": {"speculative_decoding": {"num_draft_tokens": 9, '
END += b'"num_accepted_draft_tokens": 7}}}\n'
TOKEN = b'data: {"choices": [{"finish_reason": null}]}\n'


@pytest.mark.parametrize(
    ("kind", "lines", "what"),
    [
        ("stream", [TOKEN, b"\n", END, b"data: [DONE]\n"], "answered"),
        ("stream", [TOKEN, TOKEN], "error"),
        ("stream", [TOKEN, b'data: {"error": {"message": "EngineCore died"}}\n', b"data: [DONE]\n"], "error"),
        ("stream", [TOKEN, b"data: [DONE]\n"], "lost"),
        ("cancel", [TOKEN, TOKEN, TOKEN, END, b"data: [DONE]\n"], "cancelled"),
    ],
)
def test_how_a_stream_ended(kind, lines, what):
    """Catches a truncated answer that is counted as answered."""
    found = streamed(Request("a", 0.5, kind), lines)
    assert found.status == what
    assert found.status in OUTCOMES
    assert (found.drafted, found.accepted) == ((9, 7) if what == "answered" else (0, 0))
