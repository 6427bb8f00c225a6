"""`run_programs`: many programs, one verdict each. Knows nothing of namespaces, Landlock or file descriptors.

What a pass means: the program's last statement was reached without an exception. `sys.exit(0)`, `os._exit(0)`, an
exec of something else or a crash are failures. What it does not mean: a program can still change what its own asserts
mean (return an object that equals everything, jump over lines with a trace function); that is for the task to judge.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hf_diversed.sandbox.isolation import SandboxUnavailable, check_platform, usable_mode
from hf_diversed.sandbox.launch import Limits, Report, launch


_LEAST_MEMORY = 64 * 2**20
# The kernel may be short of memory, namespaces or processes for a moment; it is not a verdict on the program.
_ATTEMPTS = 3


@dataclass(frozen=True)
class ProgramResult:
    """What became of one program.

    Attributes:
        passed: True if the program ran to its end.
        reason: "passed", "exit 1: AssertionError: line 4: assert f(2) == 4", "timeout", "killed by signal 9",
            "did not run to its end (exit 0)", ...
        output: the first 4 KiB of what it printed, stdout and stderr together.
    """

    passed: bool
    reason: str
    output: str = ""


def run_programs(
    programs: Sequence[str],
    *,
    timeout: float = 3.0,
    memory_bytes: int = 512 * 2**20,
    workers: int | None = None,
    unsafe: bool = False,
) -> list[ProgramResult]:
    """Run every program in a jail of its own; identical programs run once and share their result.

    A program may import the standard library, write to its current directory (gone afterwards), and neither see the
    caller's files, environment, processes and descriptors nor reach a network.

    Args:
        programs: Python sources, asserts included.
        timeout: wall-clock seconds for each program, > 0. All its processes are killed at the limit.
        memory_bytes: address space of each process, at least 64 MiB.
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
    """
    _check(programs, timeout, memory_bytes, workers)
    if not programs:
        return []
    check_platform(unsafe)
    mode = "unsafe" if unsafe else usable_mode()
    limits = Limits(timeout, memory_bytes)
    unique = list(dict.fromkeys(programs))
    pool = ThreadPoolExecutor(min(len(unique), workers or min(4, os.cpu_count() or 1)), "sandbox")
    try:
        results = dict(zip(unique, pool.map(lambda program: _run(program, mode, limits), unique)))
    finally:
        pool.shutdown(cancel_futures=True)
    return [results[program] for program in programs]


def _check(programs: Sequence[str], timeout: float, memory_bytes: int, workers: int | None) -> None:
    if isinstance(programs, str) or not all(isinstance(program, str) for program in programs):
        raise TypeError(
            f"programs must be a list of Python sources, got {type(programs).__name__}; wrap it in a list."
        )
    if not 0 < timeout < 86400:
        raise ValueError(f"timeout must be in (0, 86400) seconds, got {timeout}; MBPP-like programs need 3.")
    if memory_bytes < _LEAST_MEMORY:
        raise ValueError(f"memory_bytes must be at least {_LEAST_MEMORY} (the interpreter's own), got {memory_bytes}.")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}; pass None for min(4, cpu count).")


def _run(program: str, mode: str, limits: Limits) -> ProgramResult:
    for _ in range(_ATTEMPTS):
        report = launch(program, mode, limits)
        if report.ended != "unavailable":
            return _judge(report)
    raise SandboxUnavailable(
        f"the sandbox ({mode}) worked when it was tried, but could not be set up {_ATTEMPTS} times in a row: "
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
