"""Programs of the code tasks, and their execution."""

import pytest

from hf_diversed.tasks import execution, get_task
from tests.isolation import isolation_error


NAMES = ["mbpp", "humaneval", "code"]
RIGHT = "def double(x):\n    return 2 * x\n"
WRONG = "def double(x):\n    return x\n"
RECORDS = {
    "mbpp": {
        "text": "Double x.",
        "code": RIGHT.replace("\n", "\r\n"),
        "test_list": ["assert double(1) == 2", "assert double(THREE) == 6"],
        "test_setup_code": "THREE = double(3) // 2\r\n",
    },
    "humaneval": {
        "prompt": 'import math\r\n\r\n\r\ndef double(x):\r\n    """Return twice x."""\r\n',
        "canonical_solution": "    return 2 * math.floor(x)\n",
        "test": "def check(candidate):\n    assert candidate(1) == 2\n",
        "entry_point": "double",
    },
    "code": {"prompt": "Task: double\nCode:\n", "completion": RIGHT, "answer": "assert double(1) == 2\nassert True"},
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], bool]]:
    """The programs and `isolated` of each call of `run_programs`; programs that double their argument pass."""
    calls: list[tuple[list[str], bool]] = []

    def run_programs(programs, tests, *, isolated):
        calls.append((list(programs), isolated))
        return ["return 2 *" in program for program in programs]

    monkeypatch.setattr(execution, "check_isolation", lambda: None)
    monkeypatch.setattr(execution, "run_programs", run_programs)
    return calls


def allowed(name: str):
    return get_task(name, allow_code_execution=True)


def runnable(name: str):
    """Return the task, unsafe if this machine has no isolation; the programs of these tests are harmless."""
    return get_task(name, allow_code_execution=True, allow_unsafe_code_execution=bool(isolation_error()))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_one_call(name: str, calls):
    """Catches a call per completion, and scores in another order."""
    task, record = allowed(name), RECORDS[name]
    right = task.reference(record)
    scores = task.score_batch([right, "nonsense here", right, WRONG], [record] * 4)
    assert scores == [1.0, 0.0, 1.0, 0.0]
    assert [len(programs) for programs, _ in calls] == [4]
    assert task.score(right, record) == 1.0
    assert task.score_batch([], []) == []


@pytest.mark.parametrize("name", NAMES)
def test_code_is_run_only_when_allowed(name: str, calls):
    """Catches a model's code that runs without permission."""
    for score in (get_task(name).score, lambda text, record: get_task(name).score_batch([text], [record])):
        with pytest.raises(ValueError, match=f"task '{name}' runs code that a model wrote.*`--allow-code-execution`"):
            score(RIGHT, RECORDS[name])
    assert not calls
    assert get_task(name).prompt(RECORDS[name])


def test_isolation_is_disabled_only_on_request(calls):
    """Catches the mode without isolation as the default, or by permission to run code."""
    both = {"allow_code_execution": True, "allow_unsafe_code_execution": True}
    for task in (allowed("code"), get_task("code", allow_unsafe_code_execution=True), get_task("code", **both)):
        task.score(RIGHT, RECORDS["code"])
    assert [isolated for _, isolated in calls] == [True, False, False]
    assert get_task("gsm8k", **both).name == "gsm8k"


TABLE = "def double(x):\n    return {1: 2, 3: 6}.get(x)\n"


@pytest.mark.parametrize("name", NAMES)
def test_references_pass_and_wrong_programs_do_not(name: str):
    """Catches a wrong call of `run_programs`. A table of the expected values passes any test."""
    task, record = runnable(name), RECORDS[name]
    wrong = [WRONG, "import sys\nsys.exit(0)\n"]
    assert task.score_batch([task.reference(record), TABLE, *wrong], [record] * 4) == [1.0, 1.0, 0.0, 0.0]


def test_tests_as_one_text():
    """Catches a test per character: no completion would pass."""
    task, record = get_task("mbpp"), RECORDS["mbpp"]
    joined = record | {"test_list": "\n".join(record["test_list"])}
    assert (task.prompt(joined), task.tests(joined)) == (task.prompt(record), task.tests(record))


def test_helpers_of_the_prompt_are_not_the_programs():
    """Catches a program that redefines HumanEval's `poly`, which checks a root, to be 0 everywhere."""
    task = runnable("humaneval")
    record = {
        "prompt": 'def poly(x):\n    return x * x - 4\n\n\ndef root():\n    """Return a root of poly."""\n',
        "test": "def check(candidate):\n    assert abs(poly(candidate())) < 1e-6\n",
        "entry_point": "root",
    }
    cheat = "```python\ndef poly(x):\n    return 0\ndef root():\n    return 3\n```"
    assert task.score_batch(["    return 2.0\n", "    return 3\n", cheat], [record] * 3) == [1.0, 0.0, 0.0]
