"""`run_programs` from the outside: verdicts, reasons, sharing, refusals."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from hf_diversed.sandbox import ProgramResult, SandboxUnavailable, describe_isolation, isolation, run_programs, runner
from hf_diversed.sandbox.launch import Report


SAFE = describe_isolation()["mode"] is not None
needs_a_jail = pytest.mark.skipif(not SAFE, reason=f"no isolation here: {describe_isolation().get('unavailable')}")


@pytest.fixture(params=[pytest.param(False, marks=needs_a_jail), True], ids=["jail", "unsafe"])
def unsafe(request):
    return request.param


def test_results_are_in_order_and_say_why(unsafe):
    programs = [
        "x = 2\nassert x == 3, 'not three'",
        "x = 1",
        "def f(:",
        "import sys; sys.exit(0)",
        "import os; os._exit(3)",
    ]
    results = run_programs(programs, unsafe=unsafe)
    assert [result.passed for result in results] == [False, True, False, False, False]
    assert results[0].reason == "exit 1: AssertionError: line 2: assert x == 3, 'not three'"
    assert results[1] == ProgramResult(True, "passed")
    assert results[2].reason.startswith("exit 1: SyntaxError")
    assert results[3].reason == "did not run to its end (SystemExit: 0)"
    assert results[4].reason == "did not run to its end (exit 3)"


def test_limit_is_prompt_and_starts_with_the_program(unsafe):
    started = time.monotonic()
    (result,) = run_programs(["while True: pass"], timeout=0.5, unsafe=unsafe)
    assert result == ProgramResult(False, "timeout")
    assert 0.5 <= time.monotonic() - started < 3.0


def test_output_is_kept_up_to_a_limit(unsafe):
    (result,) = run_programs(["print('first'); print('x' * 10**6); assert False"], unsafe=unsafe)
    assert len(result.output) == 4096
    assert "xxx" in result.output


def test_undecodable_sources_and_messages_are_verdicts(unsafe):
    results = run_programs(
        ["x = '\ud800'", "x\0y", "raise ValueError('\ud800')", "assert False, '\n\n'"], unsafe=unsafe
    )
    assert [result.passed for result in results] == [False] * 4


@needs_a_jail
def test_callers_threads_and_umask_do_not_matter():
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    old = os.umask(0o077)
    try:
        assert run_programs(["import math, json"])[0].passed
    finally:
        os.umask(old)
        stop.set()


def test_identical_programs_run_once(monkeypatch):
    launched = []

    def launch(program, mode, limits):
        launched.append(program)
        return Report("exit 0", completed=True)

    monkeypatch.setattr(runner, "launch", launch)
    results = run_programs(["a", "b", "a", "a"], unsafe=True)
    assert sorted(launched) == ["a", "b"]
    assert [result.passed for result in results] == [True] * 4


def test_unavailable_is_said_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(isolation, "probe", lambda mode: Report("unavailable", detail=f"no {mode} today"))
    witness = tmp_path / "witness"
    with pytest.raises(SandboxUnavailable, match=r"no namespaces today.*no landlock today.*--unsafe-code-execution"):
        run_programs([f"open({str(witness)!r}, 'w')"])
    assert not witness.exists()
    assert describe_isolation()["unavailable"] == {
        "namespaces": "no namespaces today",
        "landlock": "no landlock today",
    }
    assert run_programs(["assert True"], unsafe=True)[0].passed


def test_second_kind_is_used_where_the_first_fails(monkeypatch):
    reports = {"namespaces": Report("unavailable", detail="no"), "landlock": Report("exit 0", completed=True)}
    monkeypatch.setattr(isolation, "probe", reports.__getitem__)
    assert isolation.usable_mode() == "landlock"


def test_jail_that_fails_later_is_an_error_and_not_a_verdict(monkeypatch):
    monkeypatch.setattr(runner, "launch", lambda *arguments: Report("unavailable", detail="out of namespaces"))
    monkeypatch.setattr(runner, "usable_mode", lambda: "namespaces")
    with pytest.raises(SandboxUnavailable, match="out of namespaces"):
        run_programs(["x = 1"])


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_need_the_flag(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SandboxUnavailable, match="unsafe"):
        run_programs(["x = 1"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("x = 1",), TypeError, "wrap it in a list"),
        (([1],), TypeError, "Python sources"),
        ((["x"], {"timeout": 0}), ValueError, "timeout"),
        ((["x"], {"memory_bytes": 1000}), ValueError, "memory_bytes"),
        ((["x"], {"workers": 0}), ValueError, "workers"),
    ],
)
def test_refusals(arguments, error, message):
    programs, options = (*arguments, {})[:2]
    with pytest.raises(error, match=message):
        run_programs(programs, **options)


def test_nothing_to_run():
    assert run_programs([]) == []


def test_package_needs_the_standard_library_only():
    folder = Path(isolation.__file__).parent
    roots = set()
    for path in folder.rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith(("import ", "from ")):
                roots.add(line.split()[1].split(".")[0])
    assert roots - {""} <= set(sys.stdlib_module_names) | {"hf_diversed"}
