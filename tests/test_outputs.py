"""Counters and rates."""

import json
import math
from dataclasses import replace

import pytest

from hf_diversed.outputs import SpeculativeStats


def rows() -> list[SpeculativeStats]:
    first = {"num_rounds": 4, "num_drafted": 10, "num_accepted": 6, "num_rejected": 2, "num_emitted": 9}
    first |= {"target_forwards": 4, "draft_forwards": 11, "engine": "eager", "accepted_per_position": [4, 2]}
    first |= {"weight_sum": 2.0, "tv_sum": 1.0, "bias_sum": 0.4}
    first |= dict.fromkeys(("weight_count", "tv_count", "bias_count"), 8)
    second = {"num_rounds": 1, "num_drafted": 5, "num_accepted": 3, "num_rejected": 1, "num_emitted": 4}
    second |= {"accepted_per_position": [1, 1, 1], "weight_sum": 3.0, "weight_count": 4, "engine": "eager, static"}
    return [SpeculativeStats(**first), SpeculativeStats(**second)]


def test_counters_add_up():
    """Catches a counter that is lost when rows or calls are summed, and positions truncated to the shorter list."""
    first, second = rows()
    total = SpeculativeStats(per_row=[first])
    total.add(first)
    total.add(SpeculativeStats(per_row=[second]))
    total.add(second)
    sums = {"num_rounds": 5, "num_drafted": 15, "num_accepted": 9, "num_rejected": 3, "num_emitted": 13}
    sums |= {"accepted_per_position": [5, 3, 1], "weight_sum": 5.0, "weight_count": 12, "engine": "eager, static"}
    assert total == replace(rows()[0], **sums, per_row=[first, second])
    assert [first, second] == rows()  # the summands do not change


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ("acceptance_rate", 6 / 10),
        ("verified_acceptance_rate", 6 / 8),
        ("block_efficiency", 9 / 4),
        ("acceptance_rate_per_position", [1.0, 0.5]),
        ("mean_weight", 0.25),
        ("mean_tv", 0.125),
        ("mean_bias", 0.05),
    ],
)
def test_rates(rate: str, expected):
    """Catches a rate over the wrong denominator, and a crash or a 0 where nothing was counted."""
    assert getattr(rows()[0], rate) == pytest.approx(expected)
    nothing = getattr(SpeculativeStats(), rate)
    assert nothing == [] or math.isnan(nothing)


def test_to_dict_names():
    """Catches renamed keys: cards, benchmarks and AIPerf's schema read these."""
    assert json.loads(json.dumps(rows()[0].to_dict())) == {
        "num_spec_steps": 4,
        "num_draft_tokens": 10,
        "num_accepted_draft_tokens": 6,
        "draft_acceptance_rate": 0.6,
        "mean_acceptance_length": 2.25,
        "num_accepted_tokens_per_pos": [4, 2],
        "verified_acceptance_rate": 0.75,
        "num_emitted": 9,
        "target_forwards": 4,
        "draft_forwards": 11,
        "strictness": None,
        "mean_weight": 0.25,
        "mean_tv": 0.125,
        "mean_bias": 0.05,
    }
