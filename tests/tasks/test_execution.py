"""Verdicts on programs, and programs that attack the machine that runs them."""

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from hf_diversed.tasks import execution
from hf_diversed.tasks.execution import run_programs
from tests.isolation import needs_isolation


@pytest.fixture(params=[pytest.param(True, marks=needs_isolation, id="isolated"), pytest.param(False, id="unsafe")])
def isolated(request) -> bool:
    return request.param


SQUARE = "def f(x):\n    return x * x\n"
TESTS = "assert f(2) == 4\nassert f(5) == 25\nassert abs(f(0.5) - 0.25) < 1e-6\n"
CHECK = "def check(candidate):\n    for x in range(20):\n        assert candidate(x) == x * x\ncheck(f)\n"
NODE = (
    "class Node:\n    def __init__(self, x):\n        self.x, self.next = x, None\n"
    "def total(node):\n    return node.x + total(node.next) if node else 0\n"
)
PASSING = {
    "asserts as in MBPP": (SQUARE, TESTS),
    "a check as in HumanEval": (SQUARE, CHECK),
    "classes of the program": (NODE, "a = Node(1)\na.next = Node(2)\nassert total(a) == 3"),
    "a helper of the tests": (
        "def g(x): return x + 1\ndef f(x): return g(x)",
        "def g(x): return x\nassert f(1) == 2 and g(1) == 1",
    ),
    "the main module": (
        "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "ok = pickle.loads(pickle.dumps(P(1))) == P(1)\nif __name__ != '__main__': ok = False",
        "assert ok",
    ),
    "files": ("open('a', 'w').write('b')\ndef f(): return open('a').read()", "assert f() == 'b'"),
    "text that is no ASCII": (
        "print('\u00e9' * 100_000)\ndef f(): return '\U0001f600'",
        "assert f() == '\\U0001f600'",
    ),
}
FAILING = {
    "a wrong value": ("def f(x): return 2 * x", TESTS),
    "an error at the end": (f"{SQUARE}1 / 0", TESTS),
    "invalid tests": (SQUARE, "assert f(2) =="),
    "a null character": (f"{SQUARE}\0", TESTS),
    "an exit before the tests": (f"{SQUARE}import sys\nsys.exit(0)", TESTS),
    "an exit without cleaning up": ("import os\ndef f(x): os._exit(0)", TESTS),
    "an exec": ("import os, sys\ndef f(x): os.execv(sys.executable, ['python', '-c', ''])", TESTS),
    "a printed verdict": (
        "import os\nfor fd in range(20):\n    try: os.write(fd, b'passed')\n    except OSError: pass",
        "",
    ),
    "a child that gets the right value": ("import os\ndef f(x): return x * x if os.fork() == 0 else 0", TESTS),
    "an endless loop": ("while True: pass", TESTS),
    "a pause without processor time": ("import time; time.sleep(30)", ""),
    "endless output": ("import sys\nwhile True: sys.stdout.write('x' * 10**6); sys.stderr.write('y' * 10**6)", TESTS),
    "a giant allocation": ("x = bytearray(8 * 2**30)", ""),
    "a giant file": ("with open('a', 'wb') as file:\n    for _ in range(64): file.write(b'x' * 2**20)", ""),
}


def test_verdicts(isolated: bool):
    """Catches a right program that fails, and a failure, an early exit or a claim that counts as a pass."""
    for cases, expected, timeout in ((PASSING, True, 20.0), (FAILING, False, 1.0)):
        programs, tests = zip(*cases.values())
        passed = dict(zip(cases, run_programs(programs, tests, isolated=isolated, timeout=timeout)))
        assert passed == dict.fromkeys(cases, expected)


def test_equal_programs_run_once_and_keep_their_order(monkeypatch: pytest.MonkeyPatch):
    """Catches results in another order, and completions of a group that each start an interpreter."""
    started = []

    def passes(program: str, *_) -> bool:
        started.append(program)
        return program == "a"

    monkeypatch.setattr(execution, "_passes", passes)
    assert run_programs(["a", "b", "a"], ["", "", ""], isolated=False) == [True, False, True]
    assert sorted(started) == ["a", "b"]
    assert run_programs([], [], isolated=False) == []
    with pytest.raises(ValueError, match="shorter"):
        run_programs(["a", "b"], [""], isolated=False)


# Each passes only if it succeeds. Upper-case words are replaced.
ATTACKS = {
    "reads the home folder": "import os; assert any(map(os.path.exists, HOME))",
    "reads the environment": "import os; assert 'SECRET' in os.environ",
    "overwrites a file": "open('FOLDER/file', 'w').write('gone')",
    "writes beside the interpreter": "import os; open(os.path.dirname(os.__file__) + '/new', 'w')",
    "fills the temporary folder": "for i in range(100): open(f'/tmp/{i}', 'wb').write(b'x' * 2**20)",
    "connects": "import socket; socket.create_connection(('127.0.0.1', PORT), timeout=1)",
    "kills the caller": "import os; os.kill(CALLER, 9)",
    "starts processes without end": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "imports the library": "import hf_diversed",
    "becomes root": "import os; os.setuid(0); open('/new', 'w')",
}


@needs_isolation
def test_attacks_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Catches a program that reads or changes what is outside of its sandbox, or reaches a network."""
    monkeypatch.setenv("SECRET", "x")
    (tmp_path / "file").write_text("kept")
    home = [str(path) for path in Path.home().iterdir() if not Path(sys.base_prefix).is_relative_to(path)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = {
            "HOME": repr(home),
            "FOLDER": str(tmp_path),
            "PORT": str(server.getsockname()[1]),
            "CALLER": str(os.getpid()),
        }
        programs = list(ATTACKS.values())
        for word, value in words.items():
            programs = [program.replace(word, value) for program in programs]
        assert all(compile(program, name, "exec") for name, program in zip(ATTACKS, programs))
        passed = run_programs([*programs, SQUARE], [""] * len(programs) + [TESTS], timeout=3.0)
    assert [name for name, success in zip(ATTACKS, passed) if success] == []
    assert passed[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_missing_bubblewrap_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Catches a program that runs without isolation because the tool is missing, and an error without advice."""
    check = execution.check_isolation.__wrapped__
    monkeypatch.setattr(execution, "check_isolation", check)
    monkeypatch.setenv("PATH", str(tmp_path))
    witness = tmp_path / "witness"
    advice = "`--allow-unsafe-code-execution`"
    with pytest.raises(OSError, match=f"not installed: install the Debian package `bubblewrap`.*{advice}"):
        run_programs([f"open({str(witness)!r}, 'w')"], [""])
    tool = tmp_path / "bwrap"
    tool.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(OSError, match=f"cannot isolate a program here: bwrap: No permissions .*{advice}"):
        run_programs([f"open({str(witness)!r}, 'w')"], [""])
    assert not witness.exists()
    assert run_programs([f"open({str(witness)!r}, 'w')"], [""], isolated=False) == [True]
    assert witness.exists()
