"""`run_programs`: many programs, one verdict each. Knows nothing of namespaces, Landlock or file descriptors.

What a pass means. Without tests: the last statement was reached without an exception, by the program's first process,
and no other process was left. `sys.exit(0)`, `os._exit(0)`, an exec of something else, a crash or a forked child are
failures. What it does not mean: a program can change what its own asserts mean (an object that equals everything,
lines jumped over with a trace function) or read the values that they expect from its own code. Where the score
matters, hand the asserts over as `tests`: they run in a process of their own and the program only answers calls, so it
has to know the values.

What tests do not prove, and by how much it could inflate a score:

- A program may answer from a table if its author has seen the values. MBPP shows all of its tests in the prompt; no
  judge can tell, and up to the whole score can be had this way.
- Where both sides of a comparison come from the program, it may give any value twice. In the 916 asserts of 300 MBPP
  problems there is none, in HumanEval 3, all in one problem that has 4 asserts with values besides: nothing to gain.
- A module that the tests use without importing it is the program's; so is every builtin that they use, if they name
  nothing else (the test of a function called `sum`). Nothing to gain where the assert compares with a value.
- `True == 1 == 1.0`, as Python and so the published scores have it; a subclass instance (Counter, namedtuple) compares
  as its builtin base.

Stricter than Python: the tests hand over builtins and get copies, so they do not see arguments changed in place; other
objects (of a class that the program defines, Fraction, deque) equal only themselves and take part in no arithmetic; a
program whose child processes outlive its tests fails. All 164 references of HumanEval and 299 of those 300 pass, as
they do with the asserts in the program; the other takes longer than 3 s.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hf_diversed.sandbox.isolation import SandboxUnavailable, check_platform, usable_mode
from hf_diversed.sandbox.launch import Limits, Report, launch


_LEAST_MEMORY = 64 * 2**20
# Far above what a model writes; below what could make the launcher fail instead of the program.
_MOST_SOURCE = 4 * 2**20
# The kernel may be short of memory, namespaces or processes for a moment; it is not a verdict on the program.
_PAUSES = (0.0, 0.2, 1.0)


@dataclass(frozen=True)
class ProgramResult:
    """What became of one program.

    Attributes:
        passed: True if the program ran to its end and passed its tests, if it has any.
        reason: "passed", "exit 1: AssertionError: line 4: assert f(2) == 4", "timeout", "killed by signal 9",
            "did not run to its end (exit 0)", "test failed: AssertionError: line 1: assert f(2) == 4", ...
        output: the first 4 KiB of what it printed, stdout and stderr together.
    """

    passed: bool
    reason: str
    output: str = ""


def run_programs(
    programs: Sequence[str],
    tests: Sequence[str] | None = None,
    *,
    timeout: float = 3.0,
    memory_bytes: int = 512 * 2**20,
    workers: int | None = None,
    unsafe: bool = False,
) -> list[ProgramResult]:
    """Run every program in a jail of its own; identical ones run once and share their result.

    A program may import the standard library, write to its current directory (gone afterwards), and neither see the
    caller's files, environment, processes and descriptors nor reach a network.

    Args:
        programs: Python sources.
        tests: for each program, statements that must not fail, "" for none. They run in a process of their own; names
            that they do not define are the program's, its functions called with copies of builtin values. Module
            docstring: what that proves and what not.
        timeout: wall-clock seconds for each program with its tests, > 0. All processes are killed at the limit.
        memory_bytes: memory of all processes of a program together, and address space of each; at least 64 MiB.
        workers: programs that run at once; None for `min(4, cpu count)`.
        unsafe: run without isolation, under resource limits and the timeout only. Such a program can read, write and
            kill whatever the caller can.

    Returns:
        One `ProgramResult` per program, in order.

    Raises:
        SandboxUnavailable: the kernel gives too little isolation, and `unsafe` is False.

    Example:
        >>> from hf_diversed.sandbox import run_programs
        >>> [result.passed for result in run_programs(["assert 1 + 1 == 2", "import sys; sys.exit(0)"])]
        [True, False]
        >>> run_programs(["def f(x):\n    return 2 * x"], ["assert f(2) == 4"])[0].passed
        True
    """
    _check(programs, tests, timeout, memory_bytes, workers)
    if not programs:
        return []
    check_platform(unsafe)
    mode = "unsafe" if unsafe else usable_mode()
    limits = Limits(timeout, memory_bytes)
    jobs = list(zip(programs, [""] * len(programs) if tests is None else tests))
    unique = list(dict.fromkeys(jobs))
    pool = ThreadPoolExecutor(min(len(unique), workers or min(4, os.cpu_count() or 1)), "sandbox")
    try:
        results = dict(zip(unique, pool.map(lambda job: _run(job[0], job[1], mode, limits), unique)))
    finally:
        pool.shutdown(cancel_futures=True)
    return [results[job] for job in jobs]


def _check(
    programs: Sequence[str], tests: Sequence[str] | None, timeout: float, memory_bytes: int, workers: int | None
) -> None:
    if isinstance(programs, str) or not all(isinstance(program, str) for program in programs):
        raise TypeError(
            f"programs must be a list of Python sources, got {type(programs).__name__}; wrap it in a list."
        )
    if tests is not None and (isinstance(tests, str) or len(tests) != len(programs)):
        raise ValueError(f'tests must be one string for each of the {len(programs)} programs; pass "" for no tests.')
    if not 0 < timeout < 86400:
        raise ValueError(f"timeout must be in (0, 86400) seconds, got {timeout}; MBPP-like programs need 3.")
    if memory_bytes < _LEAST_MEMORY:
        raise ValueError(f"memory_bytes must be at least {_LEAST_MEMORY} (the interpreter's own), got {memory_bytes}.")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}; pass None for min(4, cpu count).")


def _run(program: str, tests: str, mode: str, limits: Limits) -> ProgramResult:
    if len(program) > _MOST_SOURCE:
        return ProgramResult(
            False, f"exit 1: the source has {len(program)} characters, at most {_MOST_SOURCE} are run"
        )
    report = Report("unavailable")
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            report = launch(program, mode, limits, tests)
        except (SyntaxError, ValueError) as error:
            return ProgramResult(False, f"the tests are no Python: {error}")
        if report.ended != "unavailable":
            return _judge(report)
    raise SandboxUnavailable(
        f"the sandbox ({mode}) worked when it was tried, but could not be set up {len(_PAUSES)} times in a row: "
        f"{report.detail}; use fewer workers or free memory."
    )


def _judge(report: Report) -> ProgramResult:
    if report.completed:
        return ProgramResult(True, "passed", report.output)
    if report.detail:
        reason = report.detail
    elif report.ended.startswith("exit"):
        reason = f"did not run to its end ({report.ended})"
    else:
        reason = report.ended
    return ProgramResult(False, reason, report.output)
