"""The launcher: build the jail, fork the program and its tests into it, watch them, print one report.

It prints "started" once both are confined; a failure after that is the program's, not the jail's. Then it
prints `(passed, reason, output)` as a Python literal.
"""

import os
import select
import sys
import time

from . import confinement, namespaces, program, testing, watching
from .family import Family


STARTED = "started\n"
_SETUP_SECONDS = 10.0
# If the machine runs out of memory, the kernel kills the program first, then its launcher, then the caller.
_PROGRAM_OOM_SCORE, _LAUNCHER_OOM_SCORE = 1000, 900


def main(arguments: list[str]) -> None:
    """Run one program, whose source and tests are read from descriptor 0."""
    plan = confinement.Plan(arguments)
    source, secret = _take(plan.source_bytes), [os.urandom(32)]
    sys.path.pop(0)
    privileged = os.geteuid() == 0
    try:
        family = _family(plan)
        if plan.mode == "namespaces":
            plan.scratch = namespaces.enter(plan.scratch, plan.readable, privileged)
        watch = _start(plan, privileged, source, secret, family)
    except OSError as error:
        sys.exit(str(error))
    sys.stdout.write(STARTED)
    sys.stdout.flush()
    watch.start()
    ended = watch.follow(plan.timeout, plan.memory_bytes)
    watch.end(jailed=plan.mode != "unsafe")
    print((ended == "passed", watch.reason(ended), watch.output))
    # Skip finalising the interpreter, which takes milliseconds.
    sys.stdout.flush()
    os._exit(0)


def _family(plan) -> Family | None:
    """Return the process family, or None without /proc; an error in namespaces, where programs can have children."""
    try:
        family = Family()
    except OSError:
        if plan.mode == "namespaces":
            raise
        return None
    family.offer_to_the_oom_killer(_PROGRAM_OOM_SCORE)
    return family


def _start(plan, privileged: bool, source: bytes, secret: list[bytes], family: Family | None):
    """Fork the program and its tests and wait until both are confined. Raises OSError if that fails."""
    null = os.open(os.devnull, os.O_RDWR)
    status, status_in = watching.status_pair()
    output, output_in = os.pipe()
    ours, theirs = watching.channel_pair() if plan.tested else (None, None)
    ends = {"null": null, "output": output_in, "status": status_in, "channel": theirs}
    pid, *setups = _fork(lambda setup: program.run(plan, privileged, source, secret, ends | {"setup": setup}))
    watch = watching.Watch(pid, secret[0], status, output, family)
    _close(output_in, status_in, theirs)
    if plan.tested:
        tests = _take(None)  # read after the fork, so that the program's process never contains it
        verdict, verdict_in = os.pipe()
        ends = {"null": null, "verdict": verdict_in, "channel": ours}
        tester, setup = _fork(lambda setup: testing.run(plan, privileged, tests, ends | {"setup": setup}))
        watch.add_tests(tester, verdict)
        _close(ours, verdict_in)
        setups.append(setup)
    _close(null, 0)
    if family is not None:
        family.offer_to_the_oom_killer(_LAUNCHER_OOM_SCORE)
    deadline = time.monotonic() + _SETUP_SECONDS
    for end in setups:
        _await_confinement(end, deadline)
    return watch


def _fork(child) -> tuple[int, int]:
    """Run `child(setup)`, which never returns, in a new process; return its pid and the pipe on which it reports."""
    setup, setup_in = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(setup_in)
    os.close(setup_in)
    # The child does the same; either may be first. Without a pid namespace, the limit kills this process group.
    watching.ignoring_ended(os.setpgid, pid, pid)
    return pid, setup


def _await_confinement(setup: int, deadline: float) -> None:
    report = b""
    poller = select.poll()
    poller.register(setup, select.POLLIN)
    while poller.poll(max(0, 1000 * (deadline - time.monotonic()))):
        data = os.read(setup, 4096)
        report += data
        if not data:
            break
    os.close(setup)
    if report != confinement.READY:
        raise OSError(report.decode() or "a process died or hung while it was confined")


def _take(size: int | None) -> bytes:
    """Read exactly `size` bytes of the request, or the rest for None."""
    chunks = []
    while size != 0 and (chunk := os.read(0, 2**20 if size is None else min(size, 2**20))):
        chunks.append(chunk)
        size = None if size is None else size - len(chunk)
    return b"".join(chunks)


def _close(*ends: int | None) -> None:
    for end in ends:
        if end is not None:
            os.close(end)
