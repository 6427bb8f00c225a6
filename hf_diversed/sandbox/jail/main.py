"""The launcher: build the jail, fork the program and its tests into it, watch them, print one report.

It prints "started" once both are confined; a failure after that is the program's, not the jail's. Then it
prints [reason, output] as a line of JSON. Excess output is read and dropped, so that a program that prints without end
does not block or use memory.
"""

import _socket
import json
import os
import select
import sys
import time
from types import SimpleNamespace

from . import confinement, kernel, namespaces, program, testing


STARTED = "started\n"
_SIGKILL = 9
_POLL_SECONDS = 0.02
_KEPT_OUTPUT = 4096
_KEPT_COMPLAINT = 500
_READ_BYTES = 65536
_READS = 16  # per poll, so that a program that writes without end is still limited
_REPORTS = (b"exit 1: ", b"did not run to its end ")
_MESSAGES = _socket.SOCK_SEQPACKET if sys.platform == "linux" else _socket.SOCK_DGRAM


def main() -> None:
    """Run one program. `sys.argv[1]` is the job, see `launch`.

    Descriptor 0 is a file with the program's source, a line with the names that the tests use, and the tests.
    """
    job = SimpleNamespace(**json.loads(sys.argv[1]))
    sys.path.pop(0)
    try:
        # If the machine runs out of memory, the kernel kills these processes before the caller.
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # optional: a container may hide it
    try:
        if job.mode != "unsafe":
            kernel.check_machine()
        if job.mode == "namespaces":
            job.scratch = namespaces.enter(job.scratch, job.readable, os.geteuid() == 0)
        watch = _start(job)
    except OSError as error:
        sys.exit(str(error))
    sys.stdout.write(STARTED)
    sys.stdout.flush()
    print(json.dumps([watch.follow(job.timeout), watch.end()]))
    # Skip finalising the interpreter, which takes milliseconds.
    sys.stdout.flush()
    os._exit(0)


def _start(job):
    """Fork the program and its tests and wait until both are confined. Raises OSError if that fails."""
    null, source, secret = os.open(os.devnull, os.O_RDWR), os.read(0, job.source_bytes), [os.urandom(32)]
    (output, output_in), (verdict, verdict_in) = os.pipe(), os.pipe()
    status, status_in = _socket.socketpair(_socket.AF_UNIX, _MESSAGES)
    channel = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM) if job.tested else ()
    ends = [end.detach() for end in (status_in, *channel)]
    pid, tester = os.fork(), None
    if pid == 0:
        program.run(job, source, secret, null, output_in, ends[:2])
    if job.tested:
        # Read after the fork, so that the program's process never contains them.
        with open(0, "rb", closefd=False) as request:
            names, tests = json.loads(request.readline()), request.read()
        tester = os.fork()
        if tester == 0:
            testing.run(job, names, tests, null, [verdict_in, ends[2]])
    for end in (0, null, output_in, verdict_in, *ends):
        os.close(end)
    for end in [status.fileno(), verdict][: 1 + job.tested]:
        report = os.read(end, 4096)
        if report != confinement.READY:
            raise OSError(report.decode() or "a process died while it was confined")
    return Watch(pid, tester, secret[0], status, output, verdict)


class Watch:
    """Read the reports of the program and its tests, limit the time, end both processes.

    Attributes:
        received: by descriptor, what the program's output and the tests' verdict begin with.
        completed: the program has sent the secret.
        tampered: the program wrote to the launcher's descriptor.
        complaint: the program's own report of its end, which a program can forge.
        ended: the exit codes of the children that have ended.
    """

    def __init__(self, pid: int, tester: int | None, secret: bytes, status, output: int, verdict: int):
        self.pid, self.tester, self.secret = pid, tester, secret
        self.status, self.output, self.verdict = status, output, verdict
        self.received = {output: b"", verdict: b"" if tester else testing.PASSED}
        self.completed, self.tampered, self.complaint = False, False, b""
        self.ended: dict[int, int] = {}
        for end in (status.fileno(), output, verdict):
            os.set_blocking(end, False)

    def follow(self, timeout: float) -> str:
        """Start the program; wait until it has passed, failed, ended, or reached a limit; return which, in words."""
        self.status.send(b"!")
        poller = select.poll()
        readers = {self.status.fileno(): self._read_status, **dict.fromkeys(self.received, self._read)}
        for end in readers:
            poller.register(end, select.POLLIN)
        deadline = time.monotonic() + timeout
        while (now := time.monotonic()) < deadline:
            poller.poll(1000 * min(deadline - now, _POLL_SECONDS))
            self._reap()  # before reading, which then finds everything that an ended process wrote
            for end in [end for end, read in readers.items() if not read(end)]:
                poller.unregister(end)
                del readers[end]
            if reason := self._reason():
                return reason
        return "timeout"

    def end(self) -> str:
        """Kill both processes; return the beginning of the program's output."""
        _kill(os.killpg, self.pid)  # its group, because programs have children where no filter could be installed
        # The tests' process first: the first process of a pid namespace ends only after all others are reaped.
        for pid in (self.tester, self.pid):
            if pid is not None and pid not in self.ended:
                _kill(os.kill, pid)
                os.waitpid(pid, 0)
        for _ in range(_READS):
            self._read(self.output)
        return self.received[self.output].decode("utf-8", "replace")

    def _reason(self) -> str:
        """Return why this is the end; "" if it is not."""
        verdict = self.received[self.verdict]
        if self.tampered:
            return "wrote to the launcher's descriptor"
        if verdict and verdict != testing.PASSED:
            return verdict.decode("utf-8", "replace")
        if self.completed and verdict:
            return "passed"
        code = self.ended.get(self.pid)
        if code is None:
            return ""
        if code < 0:
            return f"killed by signal {-code}"
        return self.complaint.decode("utf-8", "replace") or f"did not run to its end (exit {code})"

    def _reap(self) -> None:
        try:
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                self.ended[child[0]] = os.waitstatus_to_exitcode(child[1])
        except ChildProcessError:
            pass  # no child is left

    def _read_status(self, end: int) -> bool:
        """Read the available messages; return False if no more can come."""
        for _ in range(_READS):
            try:
                message = self.status.recv(_READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not message:
                return False
            if message == self.secret:
                self.completed = True
            elif message.startswith(_REPORTS):
                self.complaint = message[:_KEPT_COMPLAINT]
            else:
                self.tampered = True
        return True

    def _read(self, end: int) -> bool:
        """Read what is available of the output or the verdict; return False at its end."""
        try:
            data = os.read(end, _READ_BYTES)
        except BlockingIOError:
            return True
        self.received[end] = (self.received[end] + data)[:_KEPT_OUTPUT]
        return bool(data)


def _kill(call, number: int) -> None:
    try:  # noqa: SIM105 (contextlib costs 20 ms)
        call(number, _SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
