"""The base of code tasks, and the execution of programs that a model wrote.

A program runs with its tests in a new interpreter under bubblewrap (https://github.com/containers/bubblewrap): without
network, with `/usr` and the interpreter read-only, an empty `/tmp` in memory, an empty environment, limits of the
kernel, and a timeout. It passes if its last statement and the last test are reached: then a token is written to a
pipe. `sys.exit(0)`, a crash and the timeout are failures, whatever the program prints.

Limits: the tests run in the process of the program, as in the published harnesses of MBPP and HumanEval. A program
that redefines `==` for the objects that it returns, or that searches its own memory for the token, can pass wrongly.
If the caller is root, programs run as the unprivileged user 65534, and share its limit of processes.
"""

import functools
import json
import math
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hf_diversed.tasks.base import Record, Task


# Appended to chat questions, because chat models add explanations and examples several times as long as the code.
CODE_ONLY = "Answer with the code only, in one code block, without comments, explanations or examples."
_TIMEOUT = 3.0  # seconds for a program with its tests
_START_TIMEOUT = 60.0  # seconds until the interpreter has started
_LIMITS = {"RLIMIT_AS": 512 * 2**20, "RLIMIT_FSIZE": 16 * 2**20, "RLIMIT_CORE": 0}
_PROCESSES = 32  # with threads; not limited without isolation, where the kernel counts all processes of the user
_TMP_BYTES = 64 * 2**20
_NOBODY = 65534
_STARTED = "started\n"
_RUNNER = Path(__file__).with_name("program.py")
_ADVICE = (
    "inside a container, programs can run without isolation: pass `--allow-unsafe-code-execution` "
    "(allow_unsafe_code_execution=True)."
)


class CodeTask(Task):
    """A task whose score is pass@1: 1.0 if the completion passes the record's tests, else 0.0. A subclass defines
    `program` and `tests` in place of `score`.

    Args:
        allow_code_execution: run code that a model wrote, isolated by bubblewrap.
        allow_unsafe_code_execution: run it without isolation, with the permissions of the caller.
    """

    metric = "pass@1"

    def __init__(self, allow_code_execution: bool = False, allow_unsafe_code_execution: bool = False):
        self.allowed = allow_code_execution or allow_unsafe_code_execution
        self.isolated = not allow_unsafe_code_execution

    def program(self, completion: str, record: Record) -> str:
        """Return the program of a completion, without tests."""
        raise NotImplementedError

    def tests(self, record: Record) -> str:
        """Return statements that fail unless the program is correct; they may use names that the program defines.
        Raises ValueError if the record has no tests."""
        raise NotImplementedError

    def check_scoring(self) -> None:
        """Raise ValueError if running code is not allowed, OSError if it must be isolated and cannot be."""
        if not self.allowed:
            raise ValueError(
                f"task {self.name!r} runs code that a model wrote, which must be allowed: pass "
                f"`--allow-code-execution`, or get_task({self.name!r}, allow_code_execution=True)."
            )
        if self.isolated:
            check_isolation()

    def score(self, completion: str, record: Record) -> float:
        return self.score_batch([completion], [record])[0]

    def score_batch(self, completions: Sequence[str], records: Sequence[Record]) -> list[float]:
        """Return the scores of all completions. Raises the errors of `check_scoring`."""
        self.check_scoring()
        programs = [self.program(completion, record) for completion, record in zip(completions, records, strict=True)]
        tests = [self.tests(record) for record in records]
        return [float(passed) for passed in run_programs(programs, tests, isolated=self.isolated)]

    def chat_answer(self, record: Record) -> str:
        return fenced(self.reference(record))


def fenced(code: str) -> str:
    """Return code in a Markdown code block."""
    return f"```python\n{code.strip()}\n```"


def checked_tests(task: str, tests: str) -> str:
    """Return a record's tests. Raises ValueError without tests, because every completion would pass."""
    if not tests.strip():
        raise ValueError(f"a record of task {task!r} has no tests, so any completion would pass; drop the record.")
    return tests.replace("\r\n", "\n") + "\n"


def run_programs(
    programs: Sequence[str], tests: Sequence[str], *, isolated: bool = True, timeout: float = _TIMEOUT
) -> list[bool]:
    """Return whether each program runs to its end and passes its tests, which may use names of the program.

    Args:
        programs: Python sources; up to four run at once, and equal programs with equal tests run once.
        isolated: run them under bubblewrap.
        timeout: seconds for each program with its tests.

    Raises:
        OSError: if isolation does not work here, or an interpreter does not start.
    """
    if isolated:
        check_isolation()
    jobs = list(zip(programs, tests, strict=True))
    distinct = list(dict.fromkeys(jobs))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        passed = dict(zip(distinct, pool.map(lambda job: _passes(job[0], job[1], isolated, timeout), distinct)))
    return [passed[job] for job in jobs]


@functools.cache
def check_isolation() -> None:
    """Raise OSError if bubblewrap is not installed, or cannot create namespaces here."""
    if shutil.which("bwrap") is None:
        raise OSError(
            "programs of code tasks are isolated by bubblewrap (`bwrap`), which is not installed: install the Debian "
            f"package `bubblewrap`, or its equivalent; {_ADVICE}"
        )
    try:
        if not _passes("import math", "assert math.gcd(6, 4) == 2", True, _START_TIMEOUT):
            raise OSError(f"the standard library of {sys.base_prefix} is not readable.")
    except OSError as error:
        raise OSError(f"bubblewrap cannot isolate a program here: {error} {_ADVICE}") from error


def _passes(program: str, tests: str, isolated: bool, timeout: float) -> bool:
    token = secrets.token_hex(16)
    limits = _LIMITS | {"RLIMIT_CPU": math.ceil(timeout) + 1}
    if isolated:
        limits["RLIMIT_NPROC"] = _PROCESSES
    elif sys.platform != "linux":
        del limits["RLIMIT_AS"]  # macOS does not support it
    user = _NOBODY if isolated and os.geteuid() == 0 else None
    job: dict[str, Any] = {
        "program": program, "tests": tests, "token": token, "started": _STARTED, "limits": limits, "user": user
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="hf-diversed-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as request,
    ):
        request.write(json.dumps(job).encode())
        request.seek(0)
        with subprocess.Popen(
            _command(isolated), stdin=request, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env={},
            start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                started = _reads(process.stdout, _STARTED, _START_TIMEOUT)
                passed = started and _reads(process.stdout, token, timeout)
            finally:
                with suppress(ProcessLookupError, PermissionError):  # macOS: a group of ended processes
                    os.killpg(process.pid, signal.SIGKILL)
            if not started:
                raise OSError(
                    process.stderr.read().decode(errors="replace").strip()[-500:] or "no interpreter started."
                )
    return passed


def _command(isolated: bool) -> list[str]:
    runner = ["-I", "-S", "-c", _RUNNER.read_text()]  # -S: without site-packages
    if not isolated:
        return [sys.executable, *runner]
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--clearenv"]
    if os.geteuid() == 0:  # keeps the user namespace, in which `program` changes the user
        command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-all"]
    command += ["--dir", sys.base_prefix]  # its parents must be readable for all users, unlike /root
    for path in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store", sys.base_prefix):
        command += ["--ro-bind-try", path, path]
    command += ["--dev-bind", "/dev/null", "/dev/null"]
    command += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]
    # Not `sys.executable`, which in a virtual environment is outside of the readable folders.
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return [*command, "--remount-ro", "/", "--chdir", "/tmp", python, *runner]


def _reads(stream: IO[bytes], expected: str, timeout: float) -> bool:
    """Return whether the next bytes of a stream are the expected ones, and arrive in time."""
    poll, deadline, received = select.poll(), time.monotonic() + timeout, b""
    poll.register(stream, select.POLLIN)
    while len(received) < len(expected):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
        if not (data := os.read(stream.fileno(), len(expected) - len(received))):
            return False
        received += data
    return received == expected.encode()
