"""The launcher: builds the jail, forks the program into it, watches it, kills it at the limit, prints one report."""

import os
import select
import sys
import time

from . import namespaces, program


_SETUP_SECONDS = 10.0
_POLL_SECONDS = 0.02
_KEPT_OUTPUT = 4096
_KEPT_STATUS = 1024
READY = b"ready\n"


def main(arguments: list[str]) -> None:
    """Run one program and print `(ended, said, output, facts)` as a Python literal."""
    plan = program.Plan(arguments)
    status, status_in = os.pipe()
    output, output_in = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    sys.path.pop(0)
    _volunteer_for_the_oom_killer()
    privileged = os.geteuid() == 0
    try:
        if plan.mode == "namespaces":
            plan.scratch = namespaces.enter(plan.scratch, plan.readable, privileged)
    except OSError as error:
        print(("unavailable", str(error).encode(), b"", {}))
        return
    pid = os.fork()
    if pid == 0:
        for end in (status, output):
            os.close(end)
        program.run(plan, privileged, (null, output_in, status_in))
    for end in (status_in, output_in, null, 0):
        os.close(end)
    # Also done by the child; whoever comes first. Without a pid namespace the group is what the limit kills.
    _ignoring_the_dead(os.setpgid, pid, pid)
    ended, said, printed = _watch(pid, status, output, plan.timeout)
    _report(ended, said, printed)
    # Straight out: finalising an interpreter that has nothing left to do takes milliseconds.
    sys.stdout.flush()
    os._exit(0)


def _report(ended: str, said: bytes, printed: bytes) -> None:
    facts: dict = {}
    ready, separator, said = said.partition(READY)
    if not separator:
        ended, said = "unavailable", ready or b"the program's process died while it was confined: " + ended.encode()
    else:
        facts = dict(pair.split("=") for pair in ready.decode().split())
        facts = {name: int(value) for name, value in facts.items()}
    print((ended, said, printed, facts))


def _watch(pid: int, status: int, output: int, timeout: float) -> tuple[str, bytes, bytes]:
    """Read both pipes until the program's process ends or its time is up, which starts when it says that it is ready.

    What exceeds the kept sizes is read and dropped, so that a program that prints for ever never blocks and costs no
    memory.
    """
    kept = {status: b"", output: b""}
    poller = select.poll()
    for end in kept:
        os.set_blocking(end, False)
        poller.register(end, select.POLLIN)
    handle = _process_handle(pid)
    if handle is not None:
        poller.register(handle, select.POLLIN)
    code, ended_itself = None, False
    deadline, started = time.monotonic() + _SETUP_SECONDS, False
    while not ended_itself and (left := deadline - time.monotonic()) > 0:
        ready = {end for end, _ in poller.poll(1000 * (min(left, _POLL_SECONDS) if handle is None else left))}
        for end in ready & kept.keys():
            if not _read(end, kept, status):
                poller.unregister(end)
        if not started and READY in kept[status]:
            deadline, started = time.monotonic() + timeout, True
        if handle is None:
            code = _exit_code(pid, block=False)
        ended_itself = code is not None or handle in ready
    # Killed before it is reaped: from then on the number may be somebody else's.
    _kill(pid, reaped=code is not None)
    if code is None:
        code = _exit_code(pid, block=True)
    assert code is not None
    ended = "timeout" if not ended_itself else f"exit {code}" if code >= 0 else f"killed by signal {-code}"
    for end in kept:
        for _ in range(16):
            if not _read(end, kept, status):
                break
    return ended, kept[status], kept[output]


def _read(end: int, kept: dict[int, bytes], status: int) -> bool:
    """Take what is there. False at the end of the pipe, or where nothing is left."""
    try:
        data = os.read(end, 65536)
    except BlockingIOError:
        return False
    if end != status:
        kept[end] = (kept[end] + data)[:_KEPT_OUTPUT] if len(kept[end]) < _KEPT_OUTPUT else kept[end]
    elif len(kept[end]) + len(data) <= _KEPT_STATUS:
        kept[end] += data
    elif READY in kept[end]:
        # A program that writes to every descriptor must not push its own verdict out of the window.
        head, _, tail = kept[end].partition(READY)
        kept[end] = head + READY + (tail + data)[-(_KEPT_STATUS - len(head) - len(READY)) :]
    return bool(data)


def _kill(pid: int, reaped: bool) -> None:
    # Killing the first process of a pid namespace kills all of it. A group is the next best thing.
    _ignoring_the_dead(os.killpg, pid, program.SIGKILL)
    if not reaped:
        _ignoring_the_dead(os.kill, pid, program.SIGKILL)


def _ignoring_the_dead(call, *arguments: int) -> None:
    try:  # noqa: SIM105 (contextlib costs 20 ms)
        call(*arguments)
    except (ProcessLookupError, PermissionError):
        pass


def _process_handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None  # macOS or Linux before 5.3, both unsafe only: the process's end is found by asking


def _exit_code(pid: int, block: bool) -> int | None:
    done, status = os.waitpid(pid, 0 if block else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _volunteer_for_the_oom_killer() -> None:
    """If the machine runs out of memory after all, a program goes first and not the training that scores it."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # a courtesy: a container may have hidden /proc
