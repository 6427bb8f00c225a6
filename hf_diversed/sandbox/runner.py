"""`run_programs`: run many programs and return one result each.

Without tests, a program passes if it reaches the last statement without an exception. `sys.exit(0)`, `os._exit(0)`, an
exec or a crash is a failure. Programs can start threads, but no processes. A program can still change the meaning of
its own asserts (an object that equals everything, a trace function that skips lines) or read the expected values from
its own code. If the score matters, pass the asserts as `tests`: they run in another process, which calls the program's
functions, so the program must compute the values.

Limits of tests, and how much they can inflate a score:

- A program may return values from a table if its author has seen them. MBPP shows all tests in the prompt, so this can
  give the whole score and cannot be detected.
- If both sides of a comparison come from the program, it may return any value twice. The 916 asserts of 300 MBPP
  problems contain no such comparison; HumanEval contains 3, in a problem with 4 other asserts.
- A module that the tests use without importing it is the program's; so is a builtin, if the tests use no other name
  (the test of a function called `sum`). This gains nothing if the assert compares with a value.
- `True == 1 == 1.0`, as in Python and in published scores; an instance of a subclass (Counter, namedtuple) compares as
  its builtin base.

Stricter than Python: tests pass and receive copies of builtins, so they do not see arguments changed in place; other
objects (of a class of the program, Fraction, deque) equal only themselves and support no arithmetic. All 164 HumanEval
references and 299 of the 300 MBPP references pass, as with the asserts in the program; the other one takes longer than
3 s.

Programs run only if files outside are not writable, processes outside cannot be signalled, and no network is
reachable. Two kinds of jail ensure this:

- *namespaces* (preferred): user, pid, mount, network, ipc and uts namespaces. A new root directory contains the
  interpreter and libraries, mounted read-only, and no /proc; the scratch directory is a tmpfs of 64 MiB. Landlock, if
  the kernel has it, and seccomp are additional protection.
- *landlock* (if namespaces are forbidden, as in most containers): Landlock (ABI 3, Linux 6.2, or later) protects
  files; seccomp refuses sockets, signals and changes of file metadata. Programs can see existence and size of files
  outside. Their scratch directory is in the host's temporary directory (on disk, or in memory if that is a tmpfs):
  a file has at most 16 MiB, the total is not limited. The number of threads is limited only if the caller is root.

In both, seccomp also refuses new processes, and exclusive locks, leases and change notifications of files. Shared
locks (fcntl), which SQLite needs, are allowed also on readable files outside, until the program ends. With namespaces,
a program can signal the process of its tests and change its limits; then the tests do not pass.
"""

import functools
import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hf_diversed.sandbox.launch import ProgramResult, SandboxUnavailable, launch


MODES = ("namespaces", "landlock")
_ADVICE = (
    "Run on Linux with unprivileged user namespaces (sysctl user.max_user_namespaces > 0, "
    "kernel.apparmor_restrict_unprivileged_userns = 0) or with Landlock (Linux 6.2+), with Python in a folder that "
    "every user may read; or accept the risk with --unsafe-code-execution (unsafe=True): only resource limits and a "
    "timeout, so programs have your permissions."
)
# Larger than programs of a model, and smaller than a source that makes the launcher fail instead of the program.
_MOST_SOURCE = 4 * 2**20
_LEAST_MEMORY = 64 * 2**20
# Seconds between attempts: the kernel can lack memory, namespaces or processes for a moment.
_PAUSES = (0.0, 0.2, 1.0)


def run_programs(
    programs: Sequence[str],
    tests: Sequence[str] | None = None,
    *,
    timeout: float = 3.0,
    memory_bytes: int = 512 * 2**20,
    unsafe: bool = False,
) -> list[ProgramResult]:
    """Run each program in its own jail; identical programs run once and share their result.

    A program can import the standard library and write to its current directory, which is deleted afterwards. It
    cannot see the caller's files, environment, processes and descriptors, and cannot reach a network.

    Args:
        programs: Python sources; up to four run at once.
        tests: for each program, statements that must not fail, "" for none. They run in another process; names that
            they do not define are the program's, whose functions are called with copies of builtin values. The
            module's docstring describes the limits.
        timeout: wall-clock seconds for each program with its tests, > 0; then both are killed.
        memory_bytes: address space of a program, and of its tests separately; >= 64 MiB.
        unsafe: where no isolation works, run with resource limits and the timeout only. Programs then have the
            caller's permissions. New processes are refused if the kernel has seccomp; otherwise they are not limited,
            and one that leaves its process group can remain. Without seccomp, a child process can pass in place of
            the program.

    Returns:
        One `ProgramResult` per program, in order.

    Raises:
        TypeError: if programs or tests are one string instead of several.
        ValueError: if the numbers of programs and tests differ, or a limit is out of range.
        SandboxUnavailable: if the kernel does not support isolation, and `unsafe` is False.

    Example:
        >>> from hf_diversed.sandbox import run_programs
        >>> [result.passed for result in run_programs(["assert 1 + 1 == 2", "import sys; sys.exit(0)"])]
        [True, False]
        >>> run_programs(["def f(x):\n    return 2 * x"], ["assert f(2) == 4"])[0].passed
        True
    """
    if isinstance(programs, str) or isinstance(tests, str):
        raise TypeError("programs and tests must be lists of sources, got one string; pass [source].")
    if not (0.0 < timeout < 86_400.0 and memory_bytes >= _LEAST_MEMORY):
        raise ValueError(
            f"timeout must be above 0 and below 86400 seconds, and memory_bytes at least {_LEAST_MEMORY}, got "
            f"{timeout!r} and {memory_bytes!r}."
        )
    if not programs:
        return []
    if not hasattr(os, "fork") or not sys.executable:
        raise SandboxUnavailable(f"code execution starts a Python interpreter on a POSIX system, got {sys.platform}.")
    mode = usable_mode(unsafe)
    jobs = list(zip(programs, [""] * len(programs) if tests is None else tests, strict=True))
    unique = list(dict.fromkeys(jobs))
    pool = ThreadPoolExecutor(min(len(unique), 4, os.cpu_count() or 1), "sandbox")
    try:
        results = dict(zip(unique, pool.map(lambda job: _run(job[0], job[1], mode, timeout, memory_bytes), unique)))
    finally:
        pool.shutdown(cancel_futures=True)
    return [results[job] for job in jobs]


@functools.cache
def probe(mode: str) -> str:
    """Run a harmless program in a jail, once per kind. Return why it failed in all attempts, or "" if it passed."""
    reason = ""
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            result = launch("import math; assert math.gcd(6, 4) == 2", mode, timeout=20.0, memory_bytes=512 * 2**20)
        except SandboxUnavailable as error:
            reason = str(error)
            continue
        if result.passed:
            return ""
        reason = result.reason
    return reason


def usable_mode(unsafe: bool) -> str:
    """Return the strongest kind of jail that works here. If none works, return "unsafe" if `unsafe` allows that, else
    raise SandboxUnavailable."""
    modes = MODES if sys.platform == "linux" else ()
    for mode in modes:
        if not probe(mode):
            return mode
    if unsafe:
        _warn_once()
        return "unsafe"
    if not modes:
        raise SandboxUnavailable(f"no isolation on {sys.platform}: namespaces and Landlock are Linux's. {_ADVICE}")
    reasons = "; ".join(f"{mode}: {probe(mode)}" for mode in modes)
    raise SandboxUnavailable(f"this machine cannot isolate a program ({reasons}). {_ADVICE}")


@functools.cache
def _warn_once() -> None:
    logging.getLogger(__name__).warning("No isolation works here: generated code runs with your permissions.")


def _run(program: str, tests: str, mode: str, timeout: float, memory_bytes: int) -> ProgramResult:
    if len(program) > _MOST_SOURCE:
        return ProgramResult(
            False, f"exit 1: the source has {len(program)} characters, at most {_MOST_SOURCE} are run"
        )
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            return launch(program, mode, timeout, memory_bytes, tests)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return ProgramResult(False, f"the tests are not valid Python: {str(error) or 'nested too deeply'}")
        except SandboxUnavailable as error:
            failure = error
    raise SandboxUnavailable(
        f"the sandbox ({mode}) worked before, but could not be set up {len(_PAUSES)} times in a row: "
        f"{failure}; free some memory."
    ) from failure
