"""Scores of the tasks that compare text: the number of gsm8k and math, ROUGE-2, BLEU."""

import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from hf_diversed.tasks import get_task
from hf_diversed.tasks.rewrite import misspelled
from hf_diversed.tasks.rouge import rouge2


def gsm8k(completion: str, gold: str) -> float:
    return get_task("gsm8k").score(completion, {"answer": f"Some <<1+1=2>>2 words.\n#### {gold}"})


@pytest.mark.parametrize(
    ("completion", "gold", "score"),
    [
        (" 2+3 = 5\n#### 5", "5", 1.0),
        (" So 12.0 in all.", "12", 1.0),
        (" So 12.5 in all.", "12", 0.0),
        ("#### $1,000", "1,000", 1.0),
        ("#### 5", "-5", 0.0),
        (r"\boxed{\frac{4}{2}}", "2", 1.0),
        (" #### 5\n\nQuestion: And 7?\n\nAnswer: 8", "5", 1.0),
        (" So 5.\n\nQuestion: And 7?\n\nAnswer: 8", "5", 1.0),
        (" So 5.\n\nQuestion: And 7?\n\nAnswer: 8", "8", 0.0),
        (" no idea", "5", 0.0),
        ("", "5", 0.0),
    ],
)
def test_gsm8k_compares_numbers(completion: str, gold: str, score: float):
    """Catches numbers compared as text, and the answer to a question that the model added."""
    assert gsm8k(completion, gold) == score


@pytest.mark.parametrize("answer", ["The answer is 5.", "####", "#### five", "#### 5 or 6"])
def test_gsm8k_refuses_records_without_a_gold_number(answer: str):
    """Catches a gold answer of None, which every completion without a number would match."""
    with pytest.raises(ValueError, match=r"`answer` of task 'gsm8k' must end in '#### N', got"):
        get_task("gsm8k").score("none", {"answer": answer})


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
    assert get_task("math").score(completion, {"answer": "7"}) == score


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
    task, record = get_task(name), {column: "the cat sat"}
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


def test_scitldr_takes_the_nearest_summary_and_the_columns_of_the_hub():
    """Catches the first summary's score or the mean, a list in the prompt, and records without summaries."""
    task = get_task("scitldr")
    assert task.score(" the cat sat", {"tldr": ["a dog ran", "the cat sat"]}) == 1.0
    hub = {"source": ["It rained.", "We measured."], "target": ["the cat sat"]}
    assert not task.missing_columns(hub)
    assert "\n\nAbstract: It rained. We measured.\n\n" in task.prompt(hub)
    assert task.score(" the cat sat on", hub) == pytest.approx(0.8)
    with pytest.raises(ValueError, match=r"`tldr` of task 'scitldr' must hold at least one summary"):
        task.score("x", {"tldr": []})


def test_rewrite_is_deterministic_and_scores_corrections():
    """Catches text that differs between runs, unchanged text, lost letters, and a copy that scores as high as the
    corrected text."""
    task, text = get_task("rewrite"), "The ministry measured everything twice. The crew measured everything twice."
    changed = misspelled(text, share=0.5)
    assert changed == misspelled(text, share=0.5)
    pairs = list(zip(text.split(" "), changed.split(" ")))
    assert {len(after) - len(before) for before, after in pairs} == {0, 1}
    record = {"source": text.split(". ")}
    assert not task.missing_columns(record)
    next_prompt = "\n\nCorrect the spelling of the following text and change nothing else."
    assert task.score(f" {task.reference(record)}{next_prompt}", record) == 1.0
    assert 0.0 < task.score(misspelled(task.reference(record), share=0.5), record) < 1.0
    long = " ".join(["measured"] * 2000)
    assert 60 < sum(word != "measured" for word in misspelled(long).split()) < 140  # one of twenty
    assert misspelled(long) in task.prompt({"text": long})


def wmt(english: str) -> dict:
    return {"translation": {"de": "Die Katze", "en": english}}


def test_wmt_is_bleu_as_a_share():
    """Catches BLEU in percent among rewards of 0 to 1, and a perfect match just above 1."""
    task = get_task("wmt")
    english = "the cat sat on the mat today"
    assert task.score(english, wmt(english)) == 1.0
    completion = "the cat sat on a mat today"
    expected = sacrebleu.sentence_bleu(completion, [english]).score / 100
    assert task.score(completion, wmt(english)) == expected
    assert 0.2 < expected < 0.9
    assert task.score("", wmt(english)) == 0.0


def test_wmt_takes_the_first_line_with_text():
    """Catches explanations after a translation that count as part of it."""
    task, record = get_task("wmt"), wmt("the cat sat on the mat")
    for text in (" the cat sat on the mat\nIt is a cat.", "\n\nthe cat sat on the mat", "the cat sat on the mat\r\n"):
        assert task.score(text, record) == 1.0
    assert task.score("\n\nGerman: x\n\nEnglish: the cat sat on the mat", record) == 0.0


@given(st.text(max_size=80), st.text(min_size=1, max_size=80))
def test_scores_stay_in_range(completion: str, reference: str):
    """Catches an error, or a score outside [0, 1], for the text of an untrained model."""
    columns = {"cnndm": "highlights", "xsum": "summary", "summary": "answer", "rewrite": "text"}
    records = {name: {column: reference} for name, column in columns.items()}
    records |= {"scitldr": {"tldr": [reference, "x y"]}, "wmt": wmt(reference)}
    records |= {"gsm8k": {"answer": "#### 3"}, "math": {"answer": "3"}}
    for name, record in records.items():
        assert 0.0 <= get_task(name).score(completion, record) <= 1.0


def test_batches_pair_completions_with_records():
    """Catches a batch of another size than its records."""
    records = [{"answer": "1"}, {"answer": "2"}, {"answer": "3"}]
    texts = ["The answer is 1.", "The answer is 3.", "The answer is 3."]
    assert get_task("math").score_batch(texts, records) == [1.0, 0.0, 1.0]
    for name in ("math", "wmt", "code"):
        with pytest.raises(ValueError, match="got 2 completions for 3 records"):
            get_task(name).score_batch(texts[:2], records)
