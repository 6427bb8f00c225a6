"""Arguments, return values and sums of rewards; and the stored rewards of the target."""

import sys
from pathlib import Path

import pytest

from hf_diversed.tasks import execution, get_task
from hf_diversed.training.references import ReferenceRewards
from hf_diversed.training.rewards import load_reward, named_rewards, score_rows, task_reward


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "tool", "content": "#### 1"}, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("form", [str, chat])
def test_a_task_is_a_reward(form):
    """Catches columns paired with the wrong completion, chats that are not unpacked, and a score of 0 for rows of
    another dataset in a mixture."""
    reward = task_reward(get_task("gsm8k"))
    columns = {"prompts": ["a", "b", "c"], "completions": [form(f"#### {number}") for number in (5, 6, 7)]}
    columns |= {"completion_ids": [[1], [2], [3]], "answer": ["#### 5", "#### 5", None]}
    assert reward(**columns, trainer_state=object(), note="three letters are no column") == [1.0, 0.0, None]
    assert reward.__name__ == "gsm8k"


@pytest.mark.parametrize("columns", [{}, {"answer": ["#### 1"]}, {"answer": "#### 1"}, {"question": ["a", "b"]}])
def test_a_missing_column_is_named(columns: dict):
    """Catches a dataset with a renamed column, all of whose rewards would be skipped."""
    with pytest.raises(ValueError, match=r"reward of task 'gsm8k' needs column 'answer', .* 2 completions"):
        task_reward(get_task("gsm8k"))(prompts=["p", "p"], completions=["a", "b"], **columns)


def test_a_column_of_another_type_is_refused():
    """Catches tests that are joined character by character, so that every completion fails them."""
    reward = load_reward("task:mbpp", allow_unsafe_code_execution=True)
    with pytest.raises(ValueError, match=r"sample 1: column 'test_list' must be a list .* got 'assert f' \(str\)"):
        reward(["x", "y"], test_list=[["assert f"], "assert f"])


def test_code_rewards_run_a_batch_at_once(monkeypatch: pytest.MonkeyPatch):
    """Catches a call per sample, and HumanEval without the signature that TRL passes as `prompts` only."""
    calls = []

    def run_programs(programs, tests, *, isolated):
        calls.append(list(programs))
        return ["return 2" in program for program in programs]

    reward = load_reward("task:humaneval", allow_unsafe_code_execution=True)
    monkeypatch.setattr(execution, "run_programs", run_programs)
    columns = {"test": ["def check(f): pass"] * 2, "entry_point": ["f", "g"]}
    completions = ["    return 2\n", "    return 3\n"]
    signatures = ["def f():\n", "def g():\n"]
    assert reward(prompts=signatures, completions=completions, **columns) == [1.0, 0.0]
    assert reward(prompts=["shots"] * 2, task_prompt=signatures, completions=completions, **columns) == [1.0, 0.0]
    assert calls[0] == calls[1]
    assert calls[0][1].startswith("def g():\n    return 3\n")
    with pytest.raises(ValueError, match="needs column 'task_prompt' or 'prompt'"):
        reward(prompts=[chat("a"), chat("b")], completions=completions, **columns)


def test_loads_tasks_functions_and_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Catches a permission to run code that is lost, and a function other than the named one."""
    (tmp_path / "my_rewards.py").write_text("def short(completions, **columns):\n    return [-1.0]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_reward("my_rewards.short")(["a"]) == [-1.0]
    assert load_reward("task:math")(["The answer is 3."], answer=["3"]) == [1.0]
    assert load_reward(len) is len
    with pytest.raises(ValueError, match="--allow-code-execution"):
        load_reward("task:code")
    monkeypatch.setattr(execution, "run_programs", lambda programs, tests, isolated: [not isolated])
    assert load_reward("task:code", allow_unsafe_code_execution=True)(["x"], answer=["assert x"]) == [1.0]
    sys.modules.pop("my_rewards", None)


@pytest.mark.parametrize(
    ("name", "module"), [("summary", "rouge_score"), ("scitldr", "rouge_score"), ("gsm8k", "math_verify")]
)
def test_a_missing_scorer_is_an_early_error(monkeypatch: pytest.MonkeyPatch, name: str, module: str):
    """Catches a package that is missed only after completions were generated."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"task '{name}' is scored by {module}; install hf-diversed\[train\]"):
        load_reward(f"task:{name}")


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("task:gsm9k", ValueError, "unknown task 'gsm9k'; known tasks: gsm8k"),
        ("length", ValueError, 'a reward must be "task:name" or "package.module.function", got \'length\''),
        ("./rewards.py", ValueError, 'a reward must be "task:name"'),
        ("no_such_package.reward", ImportError, "no_such_package"),
        ("json.no_such_function", TypeError, "must be a function of module 'json', got None"),
        ("math.pi", TypeError, "reward 'math.pi' must be a function of module 'math', got 3.14"),
    ],
)
def test_refuses_invalid_names(spec: str, error: type[Exception], message: str):
    """Catches a misspelled name that is found out after the rollouts."""
    with pytest.raises(error, match=message):
        load_reward(spec)


def constant(*values):
    def reward(completions, **columns):
        return list(values)

    return reward


def score(functions: list, weights=None, rows=({"prompt": "p"}, {"prompt": "q"}), texts=("a", "b")):
    named = named_rewards(functions)
    return score_rows(named, weights or [1.0] * len(named), rows, texts, [[1]] * len(rows))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (constant(1.0), r"reward 'reward' must return a list of 2 numbers, one per completion, got \[1.0\]"),
        (constant(1.0, 2.0, 3.0), "must return a list of 2"),
        (lambda completions, **columns: 1.0, "must return a list of 2 numbers, one per completion, got 1.0"),
        (constant(1.0, float("inf")), "must return finite numbers, or None to skip a completion, got inf"),
        (constant(1.0, float("nan")), "got nan for 'b'"),
    ],
)
def test_refuses_odd_returns(reward, message: str):
    """Catches rewards that are assigned to the wrong samples because one is missing, and NaN as "no reward"."""
    with pytest.raises(ValueError, match=message):
        score([reward])


def test_missing_rewards_are_skipped_in_the_sum():
    """Catches None counted as 0, weights in the wrong order, and two rewards of one name that replace each other."""
    first, second = constant(1.0, None, None, None, 0.0), constant(2.0, 4.0, None, 3.0, None)
    rows, texts = [{"prompt": "p"}] * 5, ["x"] * 5
    found = score([first, second], [1.0, 0.5], rows, texts)
    assert [each["reward"] for each in found] == [2.0, 2.0, None, 1.5, 0.0]
    assert [each["rewards/reward_1"] for each in found] == [2.0, 4.0, None, 3.0, None]
    assert [each["reward"] for each in score([first, second], None, rows, texts)] == [3.0, 4.0, None, 3.0, 0.0]

    class Constant:
        def __call__(self, completions, **columns):
            return [4.0] * len(completions)

    assert list(named_rewards([constant, Constant(), "task:math"])) == ["constant", "Constant", "math"]


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
