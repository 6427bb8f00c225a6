"""Scores of the tasks that compare text: the number of math, ROUGE-2."""

import pytest

from hf_diversed.tasks import get_task
from hf_diversed.tasks.summaries import rouge2


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        (" 3+4=7. The answer is 7.", 1.0),
        (" The answer is 7. \n", 1.0),
        (" The answer is 8.", 0.0),
        (" The answer is 17.", 0.0),
        (" The answer is 7", 0.0),
        (" The answer is 7. And more.", 0.0),
        (" It is 7.", 0.0),
        (" The answer is 8. The answer is 7.", 1.0),
        (" The answer is 7.\nQuestion: next\nAnswer: The answer is 9.", 1.0),
        ("", 0.0),
    ],
)
def test_math_reads_the_last_sentence(completion: str, score: float):
    """Catches a number elsewhere in the text that counts as the answer."""
    for answer in ("7", 7):  # a data file may have numbers
        assert get_task("math").score(completion, {"answer": answer}) == score


def test_rouge_counts_bigrams():
    """Catches precision or recall in place of their mean, unigrams, case and stems that matter."""
    assert rouge2("the cat sat on", "the cat sat") == pytest.approx(0.8)
    assert rouge2("the cat sat", "the cat sat on") == pytest.approx(0.8)
    assert rouge2("sat cat the", "the cat sat") == 0.0
    assert rouge2("The cats, sitting", "the cat sits") == 1.0
    assert rouge2("", "the cat sat") == 0.0


@pytest.mark.parametrize(
    ("name", "column", "stop"),
    [
        ("cnndm", "highlights", "\n\nArticle: the cat sat"),
        ("xsum", "summary", "\n\nDocument: the cat sat"),
        ("summary", "answer", "\n\nArticle: the cat sat"),
        ("scitldr", "tldr", "\n\nAbstract: the cat sat"),
    ],
)
def test_summaries_are_scored_up_to_the_next_shot(name: str, column: str, stop: str):
    """Catches text after the summary that changes its score."""
    task, record = get_task(name), {column: ["the cat sat"] if column == "tldr" else "the cat sat"}
    assert task.score(" the cat sat" + stop, record) == 1.0
    assert task.score(" a dog ran" + stop, record) == 0.0
    assert task.score(" the cat sat on", record) == pytest.approx(0.8)


def test_xsum_scores_32_words_and_cnndm_all():
    """Catches a cut of characters or tokens, one word more or less, and a cut for CNN/DailyMail."""
    words = [f"w{i}" for i in range(40)]
    record = {"summary": " ".join(words[:32]), "highlights": " ".join(words[:32])}
    assert get_task("xsum").score(" ".join(words), record) == 1.0
    assert get_task("xsum").score(" ".join(words[:31]), record) < 1.0
    assert get_task("xsum").score(" ".join([*words[:31], "x"]), record) < 1.0
    assert get_task("cnndm").score(" ".join(words), record) < 1.0


def test_scitldr_takes_the_nearest_summary():
    """Catches the first summary's score, and the mean."""
    task = get_task("scitldr")
    assert task.score(" the cat sat", {"tldr": ["a dog ran", "the cat sat"]}) == 1.0


def test_batches_pair_completions_with_records():
    """Catches a batch of another size than its records."""
    records = [{"answer": "1"}, {"answer": "2"}, {"answer": "3"}]
    texts = ["The answer is 1.", "The answer is 3.", "The answer is 3."]
    assert get_task("math").score_batch(texts, records) == [1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"zip\(\) argument 2"):
        get_task("math").score_batch(texts[:2], records)
