"""`benchmarks/learning.py` and `ceiling.py`: what they compare, and what they count."""

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import ceiling, learning
from benchmarks.differences import compare
from hf_diversed.evaluation.calls import COUNTERS
from hf_diversed.evaluation.results import Results
from hf_diversed.training import DiversedConfig
from hf_diversed.training.loading import fresh_head
from hf_diversed.verifiers import DiversedVerifier
from tests.evaluation.fakes import LetterTask, examples, tiny_pair


NUM_PROMPTS = 400


def results(**scores: np.ndarray) -> Results:
    """Invented calls: one row per prompt with these scores, each of ten draft tokens."""
    found = Results({"n": NUM_PROMPTS, "num_batches": 1, "settings": {"samples_per_prompt": 1, "seed": 0}})
    for label, values in scores.items():
        counters = {name: [0] * NUM_PROMPTS for name in COUNTERS}
        counters |= {"num_accepted": [round(10 * value) for value in values], "num_drafted": [10] * NUM_PROMPTS}
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


def test_p_values_are_small_for_large_differences():
    """Catches a p-value p reported as 1 - p: a large difference has a small one."""
    values = np.random.default_rng(1).integers(0, 6, NUM_PROMPTS) / 10
    better = values + np.random.default_rng(2).integers(0, 3, NUM_PROMPTS) / 10
    assert compare(results(a=better, b=values), "a", "b")["quality_p"] < 1e-9
    assert compare(results(a=values, b=values.copy()), "a", "b")["quality_p"] is None


def test_verifiers_are_matched_to_the_acceptance_of_a_head(tmp_path):
    """Catches a match on the wrong side: the lenience and the strictness found must accept as much on its rollouts."""
    pair, task = tiny_pair(), LetterTask()
    settings = {"initial_lenience": 0.3, "max_completion_length": 6, "token_features": True}
    args = DiversedConfig(str(tmp_path), **settings, eval_strategy="no", load_best_model_at_end=False, use_cpu=True)
    head = fresh_head(pair.target, pair.draft, args)
    head.save_pretrained(tmp_path)
    (tmp_path / learning.DONE).write_text(json.dumps({"training": settings, "seed": 0}))
    learning_rows = examples(40)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning, "draw_records", lambda *_: learning_rows)
        found = learning.match(pair, task, tmp_path)
    # The head is the untrained start itself, so the strictness must stand where it changes nothing.
    assert found["untrained_strictness"] == pytest.approx(0.5, abs=1e-3)
    assert 0.0 < float(found["lenience"].removeprefix("lenience:")) < 1.0
    assert 0.0 < found["expected_acceptance"] < 1.0
    assert DiversedVerifier(learning.untrained(pair, tmp_path), found["untrained_strictness"]).strictness == [
        found["untrained_strictness"]
    ]


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
    found = ceiling.summary(chosen, ["head"], 0, 2.0, NUM_PROMPTS)
    places = {round(row["kept"], 2): place for place, row in enumerate(found["shares"]["oracle"])}
    at = {name: [row["cost"] for row in rows] for name, rows in found["shares"].items()}
    assert at["lenience"][places[1.0]] == pytest.approx(0.25 * 2.0, abs=0.1)
    # What was harmless goes first, and costs nothing; on the half that it was not chosen by, even for the oracle.
    assert at["oracle"][places[0.7]] == pytest.approx(0.0, abs=0.06)
    assert at["lenience"][places[0.7]] == pytest.approx(0.0, abs=0.06)
    assert at["head"][places[0.2]] == pytest.approx(0.2 * 2.0, abs=0.06)
    assert found["free"]["head"] < 0.05
    assert 0.4 < found["free"]["lenience"] <= 0.8
