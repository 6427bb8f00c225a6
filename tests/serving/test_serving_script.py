"""`benchmarks/serving.py` and the page with its figures. tests/vllm runs what it measures."""

from collections import Counter

import pytest

from benchmarks.in_engine import Counted
from benchmarks.load import OUTCOMES, Request, plan, streamed
from benchmarks.serving import Completed, comparison, step_costs
from hf_diversed.evaluation.intervals import Bootstrap


def test_costs_are_compared_with_neighbouring_steps():
    """Catches a machine that slows down, or a run that starts with the plugin, counted as the plugin's cost."""
    drifting = [0.01 * (1.0 + at / 50) * (1.1 if at % 2 == 0 else 1.0) for at in range(51)]
    found = step_costs([drifting, drifting], seed=0)
    assert found["added"] == pytest.approx(0.1, abs=1e-3)
    assert found["added_ci"][0] <= found["added"] <= found["added_ci"][1]
    assert found["ms_with"] > found["ms_without"]


def test_records_are_sums_by_prompt():
    """Catches samples counted as prompts, exchanged counts of draft tokens, and a sign."""
    mine = Completed([1.0, 0.0, 1.0, 1.0], [Counted(10, 5)] * 4, [Counted(8, 5)] * 4)
    generated, behind_first = Completed([1.0] * 4, [], [Counted(10, 6)] * 4), Completed([], [], [Counted(16, 9)] * 4)
    found = comparison(mine, generated, behind_first, Bootstrap(2), samples=2)
    assert (found["quality"], found["generate_quality"]) == (0.75, 1.0)
    assert (found["acceptance_rate"], found["until_end_acceptance_rate"]) == (0.5, 0.625)
    assert (found["difference"], found["like_for_like_difference"]) == (-0.1, 0.0625)
    alone = Completed([1.0] * 2)
    assert "acceptance_rate" not in comparison(alone, alone, Completed(), Bootstrap(2), samples=1)


def test_a_plan_has_equal_shares_of_every_strictness():
    found = plan(["a", "b"], 300, seed=0)
    assert Counter(request.kind for request in found) == {"bad": 15, "cancel": 15, "whole": 135, "stream": 135}
    assert set(Counter(request.strictness for request in found).values()) == {100}
    assert {request.kind for request in plan(["a"], 60, 0, bad=0.0, cancelled=0.0)} == {"whole", "stream"}


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
