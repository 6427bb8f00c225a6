"""GSM8K's score beside lm-eval's, which cuts an answer out with its filters and compares it as a text."""

from pathlib import Path

import pytest
import yaml

from hf_diversed.tasks import get_task


lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed")
GOLD = "Each of 18 boxes holds 70, so 18 x 70 = <<18*70=1260>>1260.\n#### 1,260"
# Completions, and what the harness makes of them: by `strict-match`, by `flexible-extract`.
AGREED = [
    ("18 x 70 = 1260.\n#### 1260", 1.0, 1.0),
    ("18 x 70 = 1,260.\n#### 1,260", 1.0, 1.0),
    ("#### 1260.", 1.0, 1.0),
    ("#### 1261", 0.0, 0.0),
    ("#### -1260", 0.0, 0.0),
    ("So I cannot tell.", 0.0, 0.0),
    ("", 0.0, 0.0),
]
# Where no marker stands, `strict-match` finds nothing; we go by `flexible-extract`.
UNMARKED = [
    ("That makes 1260 in all.", 1.0),
    ("The answer is $1,260.", 1.0),
    ("18 x 70 = 1260", 1.0),
    ("**1260**.", 1.0),
    ("18 x 70 = 1250", 0.0),
    ("First 1260, then 90", 0.0),
]
# Where a filter reads something else than the answer meant: by `strict-match`, by `flexible-extract`, by us, and why.
DIFFERENT = [
    ("#### $1260", 0.0, 1.0, 1.0, "strict-match wants the digits right behind the marker"),
    ("#### 1260\n\nSee exercise 12", 1.0, 0.0, 1.0, "flexible-extract takes the last number, whatever it is of"),
    ("#### 1260\n#### 7", 1.0, 0.0, 1.0, "the same, of a model that runs on"),
    ("The answer is 1260, from 18 boxes", 0.0, 0.0, 1.0, "the number that is called the answer is not the last one"),
    (r"So \boxed{1260}, for 18 boxes", 0.0, 0.0, 1.0, "the harness knows no box in this task"),
    ("It is 1260.0", 0.0, 0.0, 1.0, "texts differ where numbers are equal"),
    ("The answer is 12. Or 1260", 0.0, 1.0, 0.0, "the number that is called the answer is not the last one"),
]


@pytest.fixture(scope="module")
def harness():
    """The harness' own configuration, filters and metric: a completion's score by the name of a filter."""
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    task = yaml.safe_load((Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml").read_text())
    settings = {
        name: task["metric_list"][0][name] for name in ("regexes_to_ignore", "ignore_case", "ignore_punctuation")
    }
    filters = {}
    for entry in task["filter_list"]:
        regex = {name: value for name, value in entry["filter"][0].items() if name != "function"}
        filters[entry["name"]] = RegexFilter(**regex)

    def score(name: str, completion: str) -> float:
        ((found,),) = filters[name].apply([[completion]], [{}])
        return float(exact_match_hf_evaluate([found], [GOLD], **settings)["exact_match"])

    return score


def ours(completion: str) -> float:
    return get_task("gsm8k").score(completion, {"answer": GOLD})


@pytest.mark.parametrize(("completion", "strict", "flexible"), AGREED)
def test_marked_answers_score_as_the_harness_scores_them(harness, completion, strict, flexible):
    """Catches GSM8K scores that no published one can be compared with."""
    assert (harness("strict-match", completion), harness("flexible-extract", completion)) == (strict, flexible)
    assert ours(completion) == strict == flexible


@pytest.mark.parametrize(("completion", "expected"), UNMARKED)
def test_unmarked_answers_score_as_flexible_extract_does(harness, completion, expected):
    """Catches a last number that is not the last one."""
    assert harness("strict-match", completion) == 0.0
    assert ours(completion) == harness("flexible-extract", completion) == expected


@pytest.mark.parametrize(("completion", "strict", "flexible", "expected", "why"), DIFFERENT)
def test_differences_are_these(harness, completion, strict, flexible, expected, why):
    """Catches a difference that is not documented, and a documented one that does not exist."""
    assert (harness("strict-match", completion), harness("flexible-extract", completion)) == (strict, flexible), why
    assert ours(completion) == expected, why
