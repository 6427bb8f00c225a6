"""Arguments, return values and sums of rewards."""

import sys
from pathlib import Path

import pytest

from hf_diversed.tasks import execution, get_task
from hf_diversed.training.rewards import RewardSum, call_reward, load_reward, task_reward


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "tool", "content": "#### 1"}, {"role": "assistant", "content": text}]


@pytest.mark.parametrize("form", [str, chat])
def test_a_task_is_a_reward(form):
    """Catches columns paired with the wrong completion, and chats that are not unpacked."""
    reward = task_reward(get_task("gsm8k"))
    columns = {"prompts": ["a", "b", "c"], "completions": [form(f"#### {number}") for number in (5, 6, 7)]}
    columns |= {"completion_ids": [[1], [2], [3]], "answer": ["#### 5", "#### 5", "#### 7"]}
    assert reward(**columns, trainer_state=object(), note="three letters are no column") == [1.0, 0.0, 1.0]
    assert reward.__name__ == "gsm8k"


def test_samples_without_a_gold_answer_are_skipped():
    """Catches an error, or a score of 0, for rows of another dataset in a mixture."""
    reward = task_reward(get_task("gsm8k"))
    assert reward(["#### 1", "#### 2", "#### 3"], answer=["#### 1", None, "#### 4"]) == [1.0, None, 0.0]


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
    assert len(calls) == 2
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
    ("name", "module"), [("summary", "rouge_score"), ("xsum", "rouge_score"), ("gsm8k", "math_verify")]
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
        ("", ValueError, 'a reward must be "task:name"'),
        ("a..b", ValueError, 'a reward must be "task:name"'),
        ("./rewards.py", ValueError, 'a reward must be "task:name"'),
        ("no_such_package.reward", ValueError, "module 'no_such_package' .* cannot be imported .* PYTHONPATH"),
        ("json.no_such_function", ValueError, "module 'json' has no 'no_such_function'"),
        ("math.pi", TypeError, "reward 'math.pi' must be a function, got float"),
    ],
)
def test_refuses_invalid_names(spec: str, error: type[Exception], message: str):
    """Catches a misspelled name that ends in a traceback of importlib."""
    with pytest.raises(error, match=message):
        load_reward(spec)


def constant(*values):
    def reward(completions, **columns):
        return list(values)

    return reward


async def waits(completions, **columns):
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (constant(1.0), r"reward 'reward' must return a list of 2, one per completion, got 1 values"),
        (constant(1.0, 2.0, 3.0), "got 3 values"),
        (lambda completions, **columns: 1.0, "must return a list of 2, one per completion, got float"),
        (lambda completions, **columns: None, "got NoneType"),
        (lambda completions, **columns: "ab", "must return a list of 2"),
        (constant("good", 1.0), "must return numbers or None, got 'good'"),
        (constant(1.0, float("inf")), "must return finite numbers or None, got inf"),
        (constant(1.0, float("nan")), "must return finite numbers or None, got nan for completion 'b'"),
        (waits, "reward 'waits' is async, which is not supported"),
    ],
)
def test_refuses_odd_returns(reward, message: str):
    """Catches rewards that are assigned to the wrong samples because one is missing."""
    for call in (lambda: call_reward(reward, ["a", "b"]), lambda: RewardSum([reward])(["a", "b"])):
        with pytest.raises(ValueError, match=message):
            call()


def test_missing_rewards_are_skipped_in_the_sum():
    """Catches None counted as 0, and weights in the wrong order."""
    first, second = constant(1.0, None, None, None, 0.0), constant(2.0, 4.0, None, 3.0, None)
    weighted = RewardSum([first, second], [1.0, 0.5])(["x"] * 5)
    assert weighted["reward"] == [2.0, 2.0, None, 1.5, 0.0]
    assert weighted["rewards/reward_1"] == [2.0, 4.0, None, 3.0, None]
    assert RewardSum([first, second])(["x"] * 5)["reward"] == [3.0, 4.0, None, 3.0, 0.0]

    class Constant:
        def __call__(self, completions, **columns):
            return [4.0] * len(completions)

    names = RewardSum([len_reward, Constant(), task_reward(get_task("math"))]).names
    assert names == ["len_reward", "Constant", "math"]


def test_columns_with_the_names_of_parameters():
    """Catches a column of the dataset that is taken for a parameter of the call."""
    columns = {"function": ["f"], "self": ["s"], "name": ["n"]}
    assert RewardSum([constant(2.0)])(["x"], **columns)["reward"] == [2.0]


def len_reward(completions, **columns):
    return [len(completion) for completion in completions]


@pytest.mark.parametrize(
    ("functions", "weights", "message"),
    [
        ([len_reward], [1.0, 2.0], "reward_weights must hold 1, one per reward, got 2"),
        ([len_reward, len_reward], [], "reward_weights must hold 2, one per reward, got 0"),
        ([], None, "`functions` must hold at least one reward, got none"),
        ([len_reward], [float("nan")], "reward_weights must be finite"),
    ],
)
def test_refuses_weights_that_do_not_fit(functions: list, weights: list | None, message: str):
    """Catches a reward without a weight, which would be ignored."""
    with pytest.raises(ValueError, match=message):
        RewardSum(functions, weights)
