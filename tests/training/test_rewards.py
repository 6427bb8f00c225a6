"""Arguments, return values and sums of rewards; and the stored rewards of the target."""

import sys
from pathlib import Path

import pytest

from hf_diversed.tasks import execution, get_task
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rewards import load_reward, named_rewards, score_rows, task_reward


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "tool", "content": "#### 1"}, {"role": "assistant", "content": text}]


def test_a_task_is_a_reward():
    """Catches columns paired with the wrong completion, chats that are not unpacked, a score of 0 for rows of another
    dataset in a mixture."""
    reward = task_reward(get_task("gsm8k"))
    for form in (str, chat):
        columns = {"prompts": ["a", "b", "c"], "completions": [form(f"#### {number}") for number in (5, 6, 7)]}
        columns |= {"completion_ids": [[1], [2], [3]], "answer": ["#### 5", "#### 5", None]}
        assert reward(**columns) == [1.0, 0.0, None]
    assert reward.__name__ == "gsm8k"


def test_code_rewards(monkeypatch: pytest.MonkeyPatch):
    """Catches a call per sample, HumanEval without the signature that TRL passes as `prompts` only, and a permission
    to run code that is lost or not needed."""
    calls = []

    def run_programs(programs, tests, *, isolated):
        calls.append((list(programs), isolated))
        return ["return 2" in program for program in programs]

    with pytest.raises(ValueError, match="--allow-code-execution"):
        load_reward("task:humaneval")
    reward = load_reward("task:humaneval", allow_unsafe_code_execution=True)
    monkeypatch.setattr(execution, "run_programs", run_programs)
    columns = {"test": ["def check(f): pass"] * 2, "entry_point": ["f", "g"]}
    completions = ["    return 2\n", "    return 3\n"]
    signatures = ["def f():\n", "def g():\n"]
    assert reward(prompts=signatures, completions=completions, **columns) == [1.0, 0.0]
    assert reward(prompts=["shots"] * 2, task_prompt=signatures, completions=completions, **columns) == [1.0, 0.0]
    assert calls[0] == calls[1]
    assert calls[0][0][1].startswith("def g():\n    return 3\n")
    assert calls[0][1] is False


def test_rewards_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Catches a function other than the named one, and a misspelled name or a missing scorer that is found out only
    after completions were generated."""
    (tmp_path / "my_rewards.py").write_text("def short(completions, **columns):\n    return [-1.0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_reward("my_rewards.short")(["a"]) == [-1.0]
    assert load_reward("task:math")(["The answer is 3."], prompts=["p"], answer=["3"]) == [1.0]
    assert load_reward(len) is len
    sys.modules.pop("my_rewards", None)
    for spec, error, message in (
        ("task:gsm9k", ValueError, "unknown task 'gsm9k'; known tasks: gsm8k"),
        ("math", ValueError, "must be task:NAME or package.module.function, got 'math'"),
        ("no_such_package.reward", ImportError, "no_such_package"),
        ("math.pi", TypeError, "reward 'math.pi' must be a function of module 'math', got 3.14"),
    ):
        with pytest.raises(error, match=message):
            load_reward(spec)
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ImportError, match=r"task 'gsm8k' is scored by math_verify; install hf-diversed\[train\]"):
        load_reward("task:gsm8k")


def constant(*values):
    def reward(completions, **columns):
        return list(values)

    return reward


def score(functions: list, weights=None, rows=({"prompt": "p"}, {"prompt": "q"}), texts=("a", "b")):
    named = named_rewards(functions)
    return score_rows(named, weights or [1.0] * len(named), rows, texts, [[1]] * len(rows))


def test_refuses_odd_returns():
    """Catches rewards that are assigned to the wrong samples because one is missing, and NaN as "no reward"."""
    for reward, message in (
        (constant(1.0), r"reward 'reward' must return a list of 2 numbers, one per completion, got \[1.0\]"),
        (lambda completions, **columns: 1.0, "must return a list of 2 numbers, one per completion, got 1.0"),
        (constant(1.0, float("nan")), "must return finite numbers, or None to skip a completion, got nan for 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            score([reward])


def test_missing_rewards_are_skipped_in_the_sum():
    """Catches None counted as 0, weights in the wrong order, and two rewards of one name that replace each other."""
    first, second = constant(1.0, None, None, None, 0.0), constant(2.0, 4.0, None, 3.0, None)
    found = score([first, second], [1.0, 0.5], [{"prompt": "p"}] * 5, ["x"] * 5)
    assert [each["reward"] for each in found] == [2.0, 2.0, None, 1.5, 0.0]
    assert [each["rewards/reward_1"] for each in found] == [2.0, 4.0, None, 3.0, None]


def test_columns_of_rows():
    """Catches another calling convention than TRL's, rows of several tasks that fail, columns with the names of
    parameters, and chats whose rewards receive text."""
    seen = []

    def reward(completions, **columns):
        seen.append((completions, columns))
        return [0.5] * len(completions)

    score([reward], rows=[{"prompt": "p", "number": 1, "name": "n"}, {"prompt": "q", "article": "text", "rows": "r"}])
    columns = {"number": [1, None], "name": ["n", None], "article": [None, "text"], "rows": [None, "r"]}
    assert seen[0] == (["a", "b"], columns | {"prompts": ["p", "q"], "completion_ids": [[1], [1]]})
    score([reward], rows=[{"prompt": chat("?")}], texts=["a"])
    assert seen[1][0] == [[{"role": "assistant", "content": "a"}]]


def test_references_by_row():
    """Catches a value that overwrites others, None as 0 or as not measured, another order of missing rows, and a
    reward that is used for a row with the same prompt and another answer."""
    store = ReferenceRewards()
    chats = [{"prompt": [{"role": "user", "content": text}]} for text in ("Why?", "How?")]
    a, b, c, none = ({"prompt": "a", "answer": answer} for answer in (0, 1, 2, None))
    store.add(list(zip([a, b, a, b, none, none, chats[0]], [1.0, None, 0.0, 0.5, None, None, 0.25])))
    assert (store[a], store[b], store[none], store[chats[0]]) == (0.5, 0.5, None, 0.25)
    assert store[{"answer": 0, "prompt": "a"}] == 0.5
    assert store.missing([c, b, *chats, none, c]) == [c, chats[1]]
