"""Monitoring by the launcher: read reports of the program and its tests, limit memory and time, end all processes."""

import _socket
import os
import select
import sys
import time

from .confinement import SIGKILL
from .family import Family


PASSED = b"passed"
_POLL_SECONDS = 0.02
_KEPT_OUTPUT = 4096
_KEPT_COMPLAINT = 500
_READS = 16  # per poll, so that a program that writes without end is still limited
_LARGEST_MESSAGE = 65536
_FAILED = "failed its tests"
_REPORTS = (b"exit 1: ", b"did not run to its end ")
_LINUX = sys.platform == "linux"
_MESSAGES = _socket.SOCK_SEQPACKET if _LINUX else _socket.SOCK_DGRAM
_CREDENTIALS_SPACE = _socket.CMSG_SPACE(12)  # pid, uid, gid


def status_pair() -> tuple[int, int]:
    """Return the ends of a message channel; on Linux, the kernel reports each sender to the first end."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _MESSAGES)
    if _LINUX:
        ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    return ours.detach(), theirs.detach()


def channel_pair() -> tuple[int, int]:
    """Return the ends of a byte channel."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    return ours.detach(), theirs.detach()


class Watch:
    """Monitor one program.

    Attributes:
        completed: the program's first process has sent the secret.
        tampered: the program wrote to the launcher's descriptor.
        verdict: the report of the tests' process; None before it, PASSED without tests.
        complaint: the program's own report of its end, which a program can forge.
        output: the first 4 KiB of its output.
    """

    def __init__(self, pid: int, secret: bytes, status: int, output: int, family: Family | None):
        self.pid, self.secret, self.end_of_output, self.family = pid, secret, output, family
        self.status = _socket.socket(_socket.AF_UNIX, _MESSAGES, 0, status)
        self.status.setblocking(False)
        self.completed, self.tampered = False, False
        self.verdict: bytes | None = PASSED
        self.complaint, self.output = b"", b""
        self.tester: int | None = None
        self.code: int | None = None
        self.readers = {status: self._read_status, output: self._read_output}
        os.set_blocking(output, False)

    def add_tests(self, tester: int, verdict: int) -> None:
        self.tester, self.verdict = tester, None
        self.readers[verdict] = lambda: self._read_verdict(verdict)
        os.set_blocking(verdict, False)

    def start(self) -> None:
        """Let the program start."""
        self.status.send(b"!")

    def follow(self, timeout: float, memory_bytes: int) -> str:
        """Wait until the program has passed, failed, ended, or reached a limit; return which, in words.

        Excess output is read and dropped, so that a program that prints without end does not block or use memory.
        """
        poller = select.poll()
        for end in self.readers:
            poller.register(end, select.POLLIN)
        handle = _process_handle(self.pid)
        if handle is not None:
            poller.register(handle, select.POLLIN)
        now = time.monotonic()
        deadline, next_check = now + timeout, now + _POLL_SECONDS
        while (now := time.monotonic()) < deadline:
            ready = {end for end, _ in poller.poll(1000 * min(deadline - now, _POLL_SECONDS))}
            for end in ready & self.readers.keys():
                if not self.readers[end]():
                    poller.unregister(end)
                    del self.readers[end]
            if ended := self._decided():
                return ended
            if handle in ready or (handle is None and self._has_ended()):
                return self._end_in_words()
            if now >= next_check:
                next_check = now + _POLL_SECONDS
                if self._holds_more_than(memory_bytes):
                    return f"more than {memory_bytes // 2**20} MiB in all its processes"
        return "timeout"

    def end(self, jailed: bool) -> None:
        """Kill remaining processes and read the rest of the output."""
        if not jailed:  # in a jail, new processes are refused, or end with the first process of their namespace
            for process in self._others():
                ignoring_ended(os.kill, int(process.partition("/")[0]), SIGKILL)
        # Kill before reaping: afterwards the number can belong to another process.
        ignoring_ended(os.killpg, self.pid, SIGKILL)
        # The tests' process first: the first process of a pid namespace ends only after all others are reaped.
        for pid in [self.tester, self.pid if self.code is None else None]:
            if pid is not None:
                ignoring_ended(os.kill, pid, SIGKILL)
                os.waitpid(pid, 0)
        for _ in range(_READS):
            if not self._read_output():
                break

    def reason(self, ended: str) -> str:
        """Return how it ended, with the report of the tests or the program if there is one."""
        if ended == _FAILED:
            return (self.verdict or b"").decode("utf-8", "replace")
        if ended.startswith("exit "):
            return self.complaint.decode("utf-8", "replace") or f"did not run to its end ({ended})"
        return ended

    def _decided(self) -> str:
        if self.tampered:
            return "wrote to the launcher's descriptor"
        if self.verdict not in (None, PASSED):
            return _FAILED
        if not (self.completed and self.verdict == PASSED):
            return ""
        # Twice: when a process ends during the first pass, its children move to this one, which was already checked.
        left = len(self._others()) or len(self._others())
        return f"left {left} process{'es' if left > 1 else ''} running" if left else "passed"

    def _others(self) -> list[str]:
        if self.family is None:
            return []
        return [process for process in self.family.alive(self.tester) if not process.startswith(f"{self.pid}/")]

    def _holds_more_than(self, limit: int) -> bool:
        if self.family is None:
            return False
        processes = self.family.alive(self.tester)
        # A single process has its own limit.
        return len(processes) > 1 and self.family.held_bytes(processes, limit) > limit

    def _end_in_words(self) -> str:
        self._read_status()
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return f"exit {self.code}" if self.code >= 0 else f"killed by signal {-self.code}"

    def _has_ended(self) -> bool:
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if done:
            self.code = os.waitstatus_to_exitcode(status)
        return bool(done)

    def _read_status(self) -> bool:
        """Read the available messages; return False if no more can come."""
        for _ in range(_READS):
            try:
                message, ancillary, *_ = self.status.recvmsg(_LARGEST_MESSAGE, _CREDENTIALS_SPACE)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not message:
                return False
            if message == self.secret:
                # A child that runs to the end has a copy of the secret.
                self.completed |= not _LINUX or _sender(ancillary) == self.pid
            elif message.startswith(_REPORTS):
                self.complaint = message[:_KEPT_COMPLAINT]
            else:
                self.tampered = True
        return True

    def _read_output(self) -> bool:
        data = _read_some(self.end_of_output)
        self.output = (self.output + (data or b""))[:_KEPT_OUTPUT]
        return data != b""

    def _read_verdict(self, end: int) -> bool:
        report = _read_some(end)
        if report:
            self.verdict = report
        elif report == b"" and self.tester is not None:
            # Ended without a verdict, possibly with the program: its end, or the limit, follows.
            os.waitpid(self.tester, 0)
            self.tester = None
        return report != b""


def _read_some(end: int) -> bytes | None:
    """Read up to 64 KiB of a pipe; b"" at its end, None if it is empty."""
    try:
        return os.read(end, 65536)
    except BlockingIOError:
        return None


def _sender(ancillary: list) -> int:
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_CREDENTIALS:
            return int.from_bytes(data[:4], sys.byteorder)
    return 0


def _process_handle(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None  # macOS or Linux before 5.3, both unsafe mode only: the end is detected by polling


def ignoring_ended(call, *arguments: int) -> None:
    try:  # noqa: SIM105 (contextlib costs 20 ms)
        call(*arguments)
    except (ProcessLookupError, PermissionError):
        pass
