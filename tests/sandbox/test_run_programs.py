"""`run_programs` from the outside: verdicts, reasons, sharing, refusals."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path

import pytest

from hf_diversed.sandbox import ProgramResult, SandboxUnavailable, run_programs, runner
from hf_diversed.sandbox.launch import names_of_the_program
from tests.sandbox.attacks import AGAINST_TESTS, PROCESSES, TESTED, TESTS, process_was_refused
from tests.sandbox.jails import jail_mode


MODE = jail_mode()
needs_a_jail = pytest.mark.skipif(MODE is None, reason="no isolation on this machine")


@pytest.fixture(params=[pytest.param(False, marks=needs_a_jail), True], ids=["jail", "unsafe"])
def unsafe(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(runner, "MODES", ())
    return request.param


@pytest.fixture
def no_isolation(monkeypatch):
    monkeypatch.setattr(runner, "MODES", ())


def test_results_are_in_order_with_reasons(unsafe):
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


FLOOD = "import os\nos.write(63, b'A' * 60000)"


def test_flood_of_the_status_descriptor_is_a_verdict(unsafe):
    """Catches a launcher that searches for its own message in what the program wrote: a large write displaced it, the
    program counted as an isolation failure, and three in a row ended a training."""
    programs = [f"{FLOOD}  # {number}" for number in range(12)]
    results = run_programs(programs, unsafe=unsafe, timeout=20.0)
    assert {result.reason for result in results} == {"wrote to the launcher's descriptor"}
    tested = run_programs(programs, ["assert f(1) == 2"] * 12, unsafe=unsafe, timeout=20.0)
    assert not any(result.passed for result in tested)


@pytest.mark.usefixtures("no_isolation")
def test_program_that_kills_its_launcher_fails_alone():
    """Catches a program that ends a training by ending its launcher: by a signal without a jail, or by memory."""
    kill = "import os\nos.kill(os.getppid(), 9)\nimport time; time.sleep(5)"
    results = run_programs([kill, "x = 1"], unsafe=True)
    assert [result.reason for result in results] == ["killed with its launcher", "passed"]


@pytest.mark.usefixtures("no_isolation")
def test_scratch_directories_are_deleted(monkeypatch, tmp_path):
    """Catches deep folders whose deletion by recursion raises in the caller or leaves files, folders without
    permissions, and a deletion that follows links."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    outside = tmp_path / "outside"
    for folder in (tmp_path / "temporary", outside):
        folder.mkdir()
    (outside / "file").touch()
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')"
    closed = "import os\nos.mkdir('a'); open('a/x', 'w'); os.mkdir('a/b'); os.chmod('a', 0); os.chmod('.', 0)"
    links = f"import os\nos.symlink({str(outside)!r}, 'a')\nos.link({str(outside / 'file')!r}, 'b')"
    linked = f"import os\nhere = os.getcwd()\nos.rmdir(here)\nos.symlink({str(outside)!r}, here)"
    results = run_programs([deep, closed, links, linked], unsafe=True, timeout=20.0)
    assert [result.reason for result in results] == ["passed"] * 4
    assert [path for path in (tmp_path / "temporary").iterdir() if not path.is_symlink()] == []
    assert (outside / "file").exists()


def test_giant_source_fails_alone():
    """Catches a source so large that the jail, and not the program, runs out of memory."""
    results = run_programs(["x = 1", "#" * (4 * 2**20 + 1)], unsafe=True)
    assert [result.passed for result in results] == [True, False]


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such filter")
def test_processes_are_refused(unsafe):
    """Catches a program whose children together exceed its limits, pass in its place, or remain after it."""
    results = run_programs(list(PROCESSES.values()), unsafe=unsafe, timeout=20.0)
    reasons = {name: result.reason for name, result in zip(PROCESSES, results)}
    assert {name: reason for name, reason in reasons.items() if not process_was_refused(name, reason)} == {}


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not limit the address space")
def test_memory_is_limited(unsafe):
    """Catches memory that is limited only in a jail."""
    programs = ["x = bytearray(200 * 2**20)", "x = bytearray(60 * 2**20)"]
    results = run_programs(programs, memory_bytes=160 * 2**20, timeout=20.0, unsafe=unsafe)
    assert [result.passed for result in results] == [False, True]
    assert results[0].reason.startswith("exit 1: MemoryError")


MANY_THREADS = """
import threading, time
threading.stack_size(2**16)
for _ in range(64):
    threading.Thread(target=time.sleep, args=(60,)).start()
"""


@needs_a_jail
def test_number_of_threads_is_limited():
    """Catches a process limit that threads escape: their kernel stacks are not address space."""
    if MODE == "landlock" and os.getuid() not in (0, 65534):
        pytest.skip("not limited under Landlock: the limit would count the caller's processes")
    (result,) = run_programs([MANY_THREADS], timeout=20.0)
    assert "can't start new thread" in result.reason


@pytest.mark.usefixtures("no_isolation")
def test_tests_run_in_their_own_process_without_a_jail_too():
    """Catches asserts evaluated in the program's process, whose objects can redefine `==`."""
    cheats = ("equals_everything", "number_that_equals_everything", "child_per_guess", "leaves")
    programs = [*(AGAINST_TESTS[name] for name in cheats), *(program for program, _ in TESTED.values())]
    tests = [TESTS] * len(cheats) + [tests for _, tests in TESTED.values()]
    results = run_programs(programs, tests, unsafe=True, timeout=20.0)
    assert [result.passed for result in results] == [False] * len(cheats) + [True] * len(TESTED)


def test_reasons_of_tests(unsafe):
    tests = ["assert f(1) == 1\nassert f(2) == 4", "assert f(1) ==", "assert f(1) == 1", "assert True"]
    tests.append("-" * 50_000 + "1")
    programs = ["def f(x): return x", "def f(x): return x", "x = 1", "def f(:", "def f(x): return x"]
    reasons = [result.reason for result in run_programs(programs, tests, unsafe=unsafe)]
    assert reasons[0] == "test failed: AssertionError: line 2: assert f(2) == 4"
    assert reasons[1].startswith("the tests are not valid Python: ")
    assert reasons[2] == "test failed: NameError: line 1: assert f(1) == 1: name 'f' is not defined"
    assert reasons[3].startswith("exit 1: SyntaxError")
    assert reasons[4].startswith("the tests are not valid Python: ")
    assert not reasons[4].endswith(": ")


@pytest.mark.parametrize(
    ("tests", "names"),
    [
        ("assert f(1) == g", ["f", "g"]),
        ("assert abs(f(1) - 1) < 1e-6", ["f"]),
        ("assert sum(1, 2) == 3", ["sum"]),
        ("import math\nassert math.isclose(f(1), 1)", ["f"]),
        ("x = f(1)\nassert [y for y in x] == [x for x in g]", ["f", "g"]),
        ("def check(candidate):\n    import math\n    assert candidate(math.pi) == poly(1)\ncheck(f)", ["f", "poly"]),
        ("class A: b = c\ndef g(h=i): return lambda j: j + k", ["c", "i", "k"]),
        ("assert True", []),
    ],
)
def test_names_that_are_the_programs(tests, names):
    """Catches a test whose own helper, or Python's `abs`, is taken from the tested program."""
    assert names_of_the_program(tests) == names


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

    def launch(program, *arguments):
        launched.append(program)
        return ProgramResult(True, "passed")

    monkeypatch.setattr(runner, "launch", launch)
    results = run_programs(["a", "b", "a", "a"], unsafe=True)
    assert sorted(launched) == ["a", "b"]
    assert [result.passed for result in results] == [True] * 4


VISIBLE = """
import json, sys, types
package = sys.modules["hf_diversed"] = types.ModuleType("hf_diversed")
package.__path__ = [sys.argv[1]]
from hf_diversed.sandbox.launch import launch, readable_paths
program = "import json, math; assert math.gcd(6, 4) == 2"
results = {mode: launch(program, mode, timeout=20.0, memory_bytes=512 * 2**20).reason for mode in sys.argv[2:]}
print(json.dumps([sys.prefix, readable_paths(), results]))
"""


@pytest.mark.parametrize("copies", [False, True], ids=["links", "copy"])
def test_virtual_environment_is_not_in_the_jail(copies, tmp_path):
    """Catches the environment's packages among the readable paths, and a jail that needs a private environment."""
    tmp_path.chmod(0o700)
    venv.create(tmp_path / "env", symlinks=not copies)
    python, package = tmp_path / "env/bin/python", Path(runner.__file__).parent.parent
    command = [str(python), "-B", "-c", VISIBLE, str(package), *([MODE] if MODE else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    prefix, readable, results = json.loads(done.stdout)
    assert prefix == str(tmp_path / "env")
    inside = [path for path in readable if path.startswith(prefix)]
    assert inside == ([os.path.realpath(python)] if copies else [])
    assert set(results.values()) <= {"passed"}


def test_missing_isolation_is_an_error_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "probe", lambda mode: f"no {mode} today")
    witness = tmp_path / "witness"
    with pytest.raises(SandboxUnavailable, match=r"no namespaces today.*no landlock today.*--unsafe-code-execution"):
        run_programs([f"open({str(witness)!r}, 'w')"])
    assert not witness.exists()
    assert runner.usable_mode(unsafe=True) == "unsafe"
    assert run_programs(["assert True"], unsafe=True)[0].passed


def test_second_kind_is_used_where_the_first_fails(monkeypatch):
    monkeypatch.setattr(runner, "probe", {"namespaces": "not permitted", "landlock": ""}.__getitem__)
    modes = []

    def launch(program, mode, *arguments):
        modes.append(mode)
        return ProgramResult(True, "passed")

    monkeypatch.setattr(runner, "launch", launch)
    for unsafe in (False, True):
        run_programs(["x = 1"], unsafe=unsafe)
    assert modes == ["landlock"] * 2


def test_a_jail_that_fails_once_is_used(monkeypatch):
    """Catches a lack of memory for a moment that ends isolation for the whole process."""
    failures = [SandboxUnavailable("out of namespaces"), None]

    def launch(*arguments, **limits):
        if failure := failures.pop(0):
            raise failure
        return ProgramResult(True, "passed")

    monkeypatch.setattr(runner, "launch", launch)
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: None)
    assert runner.probe.__wrapped__("namespaces") == ""
    assert not failures


def test_jail_that_fails_later_is_an_error_and_not_a_verdict(monkeypatch):
    def launch(*arguments):
        raise SandboxUnavailable("out of namespaces")

    monkeypatch.setattr(runner, "launch", launch)
    monkeypatch.setattr(runner, "usable_mode", lambda unsafe: "namespaces")
    monkeypatch.setattr(runner.time, "sleep", lambda seconds: None)
    with pytest.raises(SandboxUnavailable, match="out of namespaces"):
        run_programs(["x = 1"])


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_need_the_flag(monkeypatch, platform):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(SandboxUnavailable, match="unsafe"):
        run_programs(["x = 1"])
    assert runner.usable_mode(unsafe=True) == "unsafe"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"programs": "x = 1"}, TypeError, "lists of sources"),
        ({"programs": ["x = 1"], "tests": "assert x"}, TypeError, "lists of sources"),
        ({"programs": ["x = 1"], "timeout": 0}, ValueError, "timeout must be above 0"),
        ({"programs": ["x = 1"], "memory_bytes": 1000}, ValueError, "memory_bytes at least"),
    ],
)
def test_refusals(arguments, error, message):
    """Catches one string that runs as one program per character."""
    with pytest.raises(error, match=message):
        run_programs(**arguments)


def test_every_program_has_its_tests():
    """Catches programs without tests, which would pass."""
    with pytest.raises(ValueError, match="shorter"):
        run_programs(["x = 1", "x = 2"], ["assert x == 1"], unsafe=True)


def test_nothing_to_run():
    assert run_programs([]) == []


def test_package_needs_the_standard_library_only():
    folder = Path(runner.__file__).parent
    roots = set()
    for path in folder.rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith(("import ", "from ")):
                roots.add(line.split()[1].split(".")[0])
    assert roots - {""} <= set(sys.stdlib_module_names) | {"hf_diversed"}
