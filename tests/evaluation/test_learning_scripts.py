"""`benchmarks/learning.py` and `ceiling.py`: what they compare, and what they count."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import ceiling
from benchmarks.differences import compare
from hf_diversed.evaluation.calls import COUNTERS
from hf_diversed.evaluation.results import Results


NUM_PROMPTS = 400


def results(**scores: np.ndarray) -> Results:
    """Invented calls: one row per prompt with these scores, each of ten draft tokens."""
    found = Results({"n": NUM_PROMPTS, "num_batches": 1, "settings": {"samples_per_prompt": 1, "seed": 0}})
    for label, values in scores.items():
        counters = {name: [0] * NUM_PROMPTS for name in COUNTERS}
        accepted = [round(10 * value) for value in values]
        counters |= {"num_accepted": accepted, "num_drafted": [10] * NUM_PROMPTS, "num_rounds": accepted}
        rows = {"prompt": list(range(NUM_PROMPTS)), "score": values.tolist(), "tokens": [1] * NUM_PROMPTS}
        about = {"method": label, "batch": 0, "sample": 0, "definition": label, "static_weight": None}
        found.add(
            {**about, "seconds": 1.0, "peak_memory_bytes": 1, "peak_memory_kind": "process", "rows": rows | counters}
        )
    return found


def test_compares_several_methods_as_one():
    """Catches a mean over one of them only, a difference of the wrong sign, and a p-value of another test."""
    generator = np.random.default_rng(0)
    first, second, other = (generator.integers(0, 11, NUM_PROMPTS) / 10 for _ in range(3))
    found = compare(results(first=first, second=second, other=other), ("first", "second"), "other")
    difference = (first + second) / 2 - other
    assert found["quality"] == pytest.approx(difference.mean())
    assert found["acceptance_rate"] == pytest.approx(difference.mean())
    assert (found["method"], found["minus"]) == ("first, second", "other")
    expected = stats.ttest_1samp(difference, 0.0).pvalue
    assert found["quality_p"] == pytest.approx(expected, abs=0.05)
    low, high = found["quality_ci"]
    assert low < difference.mean() < high
    assert found["mean_rounds"] == pytest.approx(10 * difference.mean())
    assert found["mean_rounds_ci"] == pytest.approx([10 * low, 10 * high])


def test_the_oracle_is_scored_on_held_out_continuations():
    """Catches costs of the wrong sign, and an oracle that is scored on the data that it selects by."""
    generator = np.random.default_rng(0)
    chosen = []
    for example in range(NUM_PROMPTS):
        harmful = bool(example % 4 == 0)
        kept = [0.0, 0.0, 0.0, 0.0] if harmful else generator.integers(0, 2, 4).astype(float).tolist()
        replaced = [1.0] * 4 if harmful else generator.integers(0, 2, 4).astype(float).tolist()
        strictness = {"lenience": float(harmful), "head": float(not harmful)}
        chosen.append({"example": example, "kept": kept, "replaced": replaced, "strictness": strictness})
    free = ceiling.free_shares(chosen, ["head"], 0)
    assert free["head"] < 0.05
    assert 0.4 < free["lenience"] <= 0.8
    assert 0.6 < free["oracle"] <= 0.8
    costly = [
        entry | {name: generator.binomial(1, chance, 4) for name, chance in (("kept", 0.3), ("replaced", 0.7))}
        for entry in chosen
    ]
    assert ceiling.free_shares(costly, ["head"], 0)["oracle"] < 0.1  # on the half that it selects by: 0.4
