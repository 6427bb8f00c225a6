"""Instructions and their checkers, which are lm-eval's; none of them here is asked for sentences."""

import sys
from types import SimpleNamespace

import pytest

from hf_diversed.tasks import get_task, ifeval
from hf_diversed.tasks.rewards import task_reward


TWO = {
    "prompt": "Write at least 4 words without commas.",
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    # As on the Hub, where every record has every argument.
    "kwargs": [{"num_words": None, "relation": None}, {"num_words": 4, "relation": "at least", "num_bullets": None}],
}
ONE = {"prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
SENTENCES = {
    "prompt": "Two sentences.",
    "instruction_id_list": ["length_constraints:number_sentences"],
    "kwargs": [{"relation": "at least", "num_sentences": 2}],
}


@pytest.fixture
def checkers(monkeypatch):
    """lm-eval's checkers, which would download data of nltk's when they are imported."""
    nltk = pytest.importorskip("nltk", reason="lm-eval[ifeval] is not installed")
    for package in ("langdetect", "immutabledict", "lm_eval"):
        pytest.importorskip(package, reason="lm-eval[ifeval] is not installed")
    monkeypatch.setattr(nltk, "download", lambda *_: False)
    return ifeval.checkers()


@pytest.mark.parametrize(
    ("completion", "followed"),
    [
        ("one two three four", [True, True]),
        ("one two, three four", [False, True]),
        ("one two", [True, False]),
        ("one, two", [False, False]),
        ("  \n", [False, False]),
    ],
)
def test_score_is_the_share_that_is_followed(checkers, completion, followed):
    """Catches all or nothing, instructions checked with another's arguments, and an empty text that breaks no rule."""
    assert ifeval.followed(completion, TWO) == followed
    assert get_task("ifeval").score(completion, TWO) == sum(followed) / 2


def test_languages_are_guessed_alike_every_time(checkers):
    """Catches a reward that differs from call to call: langdetect draws random numbers unless it is seeded."""
    record = {"prompt": "lower case", "instruction_id_list": ["change_case:english_lowercase"], "kwargs": [{}]}
    texts = ["no", "si me la de", "an in die", "hotel taxi restaurant"]
    first = get_task("ifeval").score_batch(texts, [record] * 4)
    assert all(get_task("ifeval").score_batch(texts, [record] * 4) == first for _ in range(5))


def test_a_reward_reads_its_two_columns(checkers):
    """Catches a column called `kwargs` that gets lost among keyword arguments, and a wish for the prompt."""
    reward = task_reward(get_task("ifeval"))
    columns = {name: [TWO[name], ONE[name]] for name in ("instruction_id_list", "kwargs")}
    messages = [[{"role": "user", "content": "x"}]] * 2
    assert reward(completions=["one two", "a, b"], prompts=messages, **columns) == [0.5, 0.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kwargs": [{}]}, "at least one instruction and `kwargs` for each, got 2 and 1"),
        ({"instruction_id_list": [], "kwargs": []}, "at least one instruction"),
        ({"instruction_id_list": ["a:b", "punctuation:no_comma"]}, "lm-eval has no checker for 'a:b'; it has "),
    ],
)
def test_records_that_cannot_be_checked(checkers, change, message):
    """Catches a KeyError amid a run, and a record that any text would follow."""
    with pytest.raises(ValueError, match=message):
        get_task("ifeval").check_scoring([ONE, TWO | change])


@pytest.mark.parametrize("here", [True, False])
def test_sentences_want_data_of_nltk(checkers, monkeypatch, here):
    """Catches nltk's own error after all texts were written, and a refusal of records that need no such data."""
    import nltk

    def find(name: str) -> str:
        assert name == "tokenizers/punkt_tab"
        if not here:
            raise LookupError("Resource punkt_tab not found.")
        return name

    monkeypatch.setattr(nltk, "data", SimpleNamespace(find=find))
    task = get_task("ifeval")
    task.check_scoring([ONE, TWO])
    if here:
        task.check_scoring([SENTENCES])
        return
    with pytest.raises(ValueError, match=r"'length_constraints:number_sentences' needs nltk's data punkt_tab"):
        task.check_scoring([SENTENCES])
    with pytest.raises(ValueError, match="punkt_tab"):
        task.score("One. Two.", SENTENCES)


@pytest.mark.parametrize("missing", ["lm_eval.tasks.ifeval", "langdetect"])
def test_without_lm_eval_there_is_no_score(monkeypatch, missing):
    """Catches a score of 0, or an ImportError that does not say what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(ifeval, "checkers", ifeval.checkers.__wrapped__)
    for ask in (get_task("ifeval").check_scoring, lambda: get_task("ifeval").score("x", ONE)):
        with pytest.raises(ImportError, match=r"checked by lm-eval's ifeval task .*install hf-diversed\[eval\]"):
            ask()
