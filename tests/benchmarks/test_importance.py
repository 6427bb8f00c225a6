"""`benchmarks/importance.py`: importance weights of token records on the embedded pair."""

import math

from benchmarks.importance import measure


def test_weighted_rollouts_estimate_the_targets_reward():
    """Catches log-probabilities that are shifted against the tokens or lack the end of a row: the weighted mean reward
    of relaxed rollouts would leave its bound, or p / v would not average 1. False alarms: each of the two differences
    exceeds 4 standard errors in about one of 16,000 runs; the seeds are fixed."""
    target, relaxed = measure(["target", "static:0.9"], num_prompts=96, samples_per_prompt=1)
    assert target["mean_weight"] == {"mean": 1.0, "error": 0.0}
    bound = 4.0 * math.hypot(target["reward"]["error"], relaxed["weighted_reward"]["error"])
    assert abs(relaxed["weighted_reward"]["mean"] - target["reward"]["mean"]) < bound < 0.6
    assert abs(relaxed["token_excess"]["mean"]) < 4.0 * relaxed["token_excess"]["error"] < 0.3
    assert 0.2 < relaxed["effective_share"] < 0.99
