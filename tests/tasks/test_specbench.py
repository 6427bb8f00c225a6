"""Spec-Bench: a score by category."""

import pytest

from hf_diversed.tasks import get_task


@pytest.mark.parametrize(
    ("category", "reference", "right", "wrong"),
    [
        ("translation", "It rains today in the hills.", "It rains today in the hills.", "Nothing."),
        ("summarization", "Rain came to the hills.", "Rain came to the hills.", "Nothing at all."),
        ("math_reasoning", "1 + 1 = 2\n#### 2", "So the answer is 2.", "So the answer is 3."),
        ("rag", ["in 2010", "aiding in regulating climate ,"], "Aiding in regulating climate", "In 2011."),
    ],
)
def test_scores_by_category(category, reference, right, wrong):
    """Catches a category with another one's score, and references of which only one is used."""
    record = {"category": category, "turns": ["?"], "reference": [reference]}
    right, wrong = get_task("specbench").score_batch([right, wrong], [record] * 2)
    assert right == pytest.approx(1.0)
    assert wrong < 0.1


def test_a_category_without_a_score():
    """Catches a comparison with the reference in a category that the dataset scores by a judge model."""
    assert get_task("specbench").score("5pi", {"category": "math", "turns": ["?", "!"], "reference": ["5pi", ""]}) == 0


def test_questions_alone_need_no_reference():
    """Catches prompts for labels without references that are refused because they have none."""
    task = get_task("specbench")
    with pytest.raises(ValueError, match="needs a column 'reference'"):
        task.check_types({"category": "rag", "turns": ["?"]}, "line 1")
    task.columns = task.columns[:1]
    task.check_types({"category": "rag", "turns": ["?"]}, "line 1")
    task.check_types({"turns": ["?"]}, "line 1")
