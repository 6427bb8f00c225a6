"""Prompts with solved examples, chat turns, stop strings, and the registry."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from hf_diversed.evaluation.decoder import encode
from hf_diversed.tasks import TASKS, PromptedTask, choose_shots, get_task, prompt_rows
from hf_diversed.tasks import prompted as prompts


RECORDS = {
    "gsm8k": {"question": "How many are 2 and 3?", "answer": "2+3 = <<2+3=5>>5\n#### 5"},
    "cnndm": {"article": "It rained.", "highlights": "Rain .\nMore rain ."},
    "xsum": {"document": "It rained.", "summary": "Rain came."},
    "mbpp": {"text": "Double x.", "code": "def f(x):\r\n    return 2*x", "test_list": ["assert f(1)==2"]},
    "humaneval": {
        "prompt": 'def f(x):\n    """Double x."""\n',
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(g):\n    assert g(1) == 2\n",
        "entry_point": "f",
    },
    "scitldr": {"abstract": "It rained. We measured it.", "tldr": ["We measure rain.", "Rain is measured."]},
    "math": {"prompt": "Question: 1 and 1?\nAnswer:", "completion": " 1+1=2. The answer is 2.", "answer": "2"},
    "summary": {"prompt": "Article: It rained.\nSummary:", "completion": " Rain.", "answer": "Rain."},
    "code": {"prompt": "Task: f\nCode:\n", "completion": "def f(): pass\n", "answer": "assert f() is None"},
}
PROMPTS = {
    "gsm8k": "Question: How many are 2 and 3?\n\nAnswer:",
    "cnndm": "Summarize the following article:\n\nArticle: It rained.\n\nSummary:",
    "xsum": "Write a concise summary of the following document:\n\nDocument: It rained.\n\nSummary:",
    "mbpp": "Write a Python function to solve the following problem:\n\nDouble x.\n\n"
    "Your solution should pass these tests:\nassert f(1)==2\n\nSolution:\n",
    "humaneval": 'def f(x):\n    """Double x."""\n',
    "scitldr": "Summarize the following abstract in one sentence:\n\nAbstract: It rained. We measured it.\n\nSummary:",
    "math": "Question: 1 and 1?\nAnswer:",
    "summary": "Article: It rained.\nSummary:",
    "code": "Task: f\nCode:\n",
}
QUESTION = "How many are 2 and 3?\n\nThink briefly, in plain text without code. End with: The answer is N."
REFERENCES = {
    "gsm8k": " 2+3 = 5\n#### 5",
    "cnndm": " Rain .\nMore rain .",
    "xsum": " Rain came.",
    "mbpp": "def f(x):\n    return 2*x\n",
    "humaneval": "    return 2 * x\n",
    "scitldr": " We measure rain.",
    "math": " 1+1=2. The answer is 2.",
    "summary": " Rain.",
    "code": "def f(): pass\n",
}


def other(name: str, mark: str) -> dict:
    """The record with something added, so that it differs from the first."""
    column = next(iter(RECORDS[name]))
    return RECORDS[name] | {column: RECORDS[name][column].replace(" ", f" {mark}", 1)}


@pytest.mark.parametrize("name", TASKS)
def test_prompt_and_reference(name: str):
    """Catches a lost cue, columns that are missing in a prompt, a reference without the space after the prompt,
    calculator notes, and Windows line ends."""
    task = get_task(name)
    assert task.prompt(RECORDS[name]) == PROMPTS[name]
    assert not task.missing_columns(RECORDS[name])
    assert task.reference(RECORDS[name]) == REFERENCES[name]


@pytest.mark.parametrize("name", TASKS)
def test_a_model_that_starts_the_next_shot_is_cut(name: str):
    """Catches stop strings that do not occur at the start of the next example, which would then be scored too."""
    task, record = get_task(name), RECORDS[name]
    shots = [other(name, "A"), other(name, "B")]
    prompt = task.few_shot_prompt(record, shots)
    assert prompt.endswith("\n\n" + PROMPTS[name])
    assert prompt.count(REFERENCES[name].rstrip()) == 2
    whole = task.few_shot_prompt(other(name, "C"), [record])
    runaway = whole[len(PROMPTS[name]) :]  # what a model writes that goes on with another shot
    assert task.trim(runaway).rstrip() == REFERENCES[name].rstrip()


def test_trim_cuts_at_the_first_of_several():
    """Catches a cut at the first listed stop string instead of the first that occurs."""
    task = get_task("mbpp")
    assert task.trim("x\nassert a\nprint(b)\nassert c") == "x"
    assert task.trim("x\nprint(b)\nassert c") == "x"
    assert task.trim("no stop: assert") == "no stop: assert"


def test_a_record_is_not_its_own_example():
    """Catches a prompt that contains its own answer."""
    pool = [{"question": str(i)} for i in range(4)]
    assert choose_shots(pool, 3, {"question": "1"}) == [pool[0], pool[2], pool[3]]
    assert choose_shots(pool, 2, {"question": "9"}) == pool[:2]
    assert choose_shots(pool, 0, pool[0]) == []


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0}, unk_token="?")))


def test_chat_prompt_uses_the_template(tokenizer):
    """Catches solved examples in one turn, and a prompt that does not open the assistant's turn."""
    task = PromptedTask(get_task("gsm8k"), tokenizer, pool=[other("gsm8k", "A")], shots=1, chat=True)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    assert task.prompt(RECORDS["gsm8k"]) == (
        "<user>How Amany are 2 and 3?\n\nThink briefly, in plain text without code. End with: The answer is N.</>"
        "<assistant>2+3 = 5\nThe answer is 5.</>"
        f"<user>{QUESTION}</><assistant>"
    )


def test_models_think_only_on_request(tokenizer):
    """Catches a reasoning model whose thoughts use up the answer's tokens, and an argument that is refused."""
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
    )
    answer, think = (PromptedTask(get_task("gsm8k"), tokenizer, chat=True, thinking=value) for value in (False, True))
    assert answer.prompt(RECORDS["gsm8k"]) == QUESTION + "<think></think>"
    assert think.prompt(RECORDS["gsm8k"]) == QUESTION
    chat = [{"role": "user", "content": "?"}]
    assert encode(tokenizer, [chat]) == encode(tokenizer, ["?<think></think>"])
    with pytest.raises(ValueError, match="`thinking` needs `chat`"):
        PromptedTask(get_task("gsm8k"), tokenizer, thinking=True)

    tokenizer.chat_template = "{{ messages[0].content }}"
    seen = []
    tokenizer.apply_chat_template = lambda messages, **kwargs: seen.append(kwargs) or ""
    prompts.render(tokenizer, chat)
    assert "enable_thinking" not in seen[0]


def test_rows_keep_a_prompt_of_the_record():
    """Catches a signature that is lost when solved examples or chat turns replace the prompt."""
    task, pool = get_task("humaneval"), [RECORDS["humaneval"], other("humaneval", "A")]
    for chat in (False, True):
        first, second = prompt_rows(task, pool, pool=pool, shots=1, chat=chat)
        assert first["task_prompt"] == RECORDS["humaneval"]["prompt"]
        assert second["task_prompt"] == pool[1]["prompt"]
        assert task.program("    return 1", first) == task.program("    return 1", pool[0])
    plain = prompt_rows(get_task("gsm8k"), [RECORDS["gsm8k"]])
    assert plain == [RECORDS["gsm8k"] | {"prompt": PROMPTS["gsm8k"]}]
    assert prompt_rows(get_task("gsm8k"), [RECORDS["gsm8k"]], chat=True)[0]["prompt"] == [
        {"role": "user", "content": QUESTION}
    ]
