"""The process that becomes the program: locks itself in, then runs the source and says how that ended.

How a pass is told from everything else. The parent sends 32 random bytes before the source; they come back only if the
last statement was reached. While the program runs, no variable of any frame, module, closure or descriptor refers to
them: they wait on the evaluation stack of `_run_to_its_end`, behind the call that runs the program. So neither leaving
early, nor writing to every descriptor, nor replacing builtins, nor walking frames or the heap's containers brings them
back (from Python 3.14 on, `gc.get_referents` of that one frame shows its stack). What could: reading raw memory with
ctypes. Program and witness share an address space, and no more than this is claimed.
"""

import builtins
import ctypes
import os
import resource
import sys

from . import kernel, landlock, namespaces, seccomp


TOKEN_BYTES = 32
NOBODY = 65534
SIGKILL = 9
_SOURCE_NAME = "<program>"
_PROCESSES = 32
_OPEN_FILES = 64
_FILE_BYTES = 16 * 2**20
_LEAST_LANDLOCK = 3  # earlier ones do not stop truncate()
_NEW_USER = 0x10000000
_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38
_CAPABILITY_VERSION = 0x20080522


class Plan:
    """The launcher's command line, typed. `readable` and, at first, `scratch` are paths of the host."""

    def __init__(self, arguments: list[str]):
        self.mode = arguments[0]
        self.timeout = float(arguments[1])
        self.memory_bytes = int(arguments[2])
        self.scratch = arguments[3]
        self.readable = arguments[4:]


def run(plan: Plan, privileged: bool, channels: tuple[int, int, int]) -> None:
    """Confine this process, run the program that waits on descriptor 0, and leave: it never returns.

    Args:
        plan: what kind of jail, and the limits.
        privileged: the caller is root, so there is a uid to give up.
        channels: descriptors of /dev/null, of what the program prints, of what is said about the program.
    """
    leave, status = os._exit, channels[2]
    try:
        os.setpgid(0, 0)
        token, source = _read_request()
        status = _arrange_descriptors(*channels)
        facts = _confine(plan, privileged)
    except BaseException as error:
        os.write(status, f"{type(error).__name__}: {error}".encode()[:500])
        leave(1)
    os.write(status, " ".join(f"{name}={value}" for name, value in facts.items()).encode() + b" ready\n")
    secret = [token]
    del token
    _become_main()
    leave(_execute(source, secret, status))


def _read_request() -> tuple[bytes, bytes]:
    chunks = []
    while chunk := os.read(0, 2**20):
        chunks.append(chunk)
    request = b"".join(chunks)
    return request[:TOKEN_BYTES], request[TOKEN_BYTES:]


def _arrange_descriptors(null: int, output: int, said: int) -> int:
    """Leave 0, 1, 2 and the status descriptor open. It is a high one, which no program uses by accident."""
    status = _OPEN_FILES - 1
    os.dup2(said, status, inheritable=False)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, status)
    os.closerange(status + 1, 256)
    return status


def _confine(plan, privileged: bool) -> dict[str, int]:
    """Give up everything the program must not have; what is left, by name. Raises OSError if any of it fails."""
    os.environ.clear()
    os.umask(0o077)
    facts = {"landlock_abi": 0, "seccomp": 0, "uid": os.getuid(), "uid_dropped": 0}
    if plan.mode == "unsafe":
        os.chdir(plan.scratch)
        _limit(plan)
        return facts
    jailed = plan.mode == "namespaces"
    if privileged:
        _become_nobody(plan, jailed)
        facts |= {"uid": NOBODY, "uid_dropped": 1}
    kernel.libc("prctl", _SET_PARENT_DEATH_SIGNAL, SIGKILL, 0, 0, 0)
    kernel.libc("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    os.chdir(plan.scratch)
    _limit(plan)
    _drop_capabilities()
    facts["landlock_abi"] = landlock.abi()
    if facts["landlock_abi"] < _LEAST_LANDLOCK and not jailed:
        raise OSError(f"Landlock ABI {_LEAST_LANDLOCK} or later is needed, this kernel has {facts['landlock_abi']}")
    if facts["landlock_abi"]:
        landlock.restrict(facts["landlock_abi"], plan.readable, list(namespaces.DEVICES), plan.scratch)
    seccomp.restrict(namespaces=jailed)
    facts["seccomp"] = 1
    return facts


def _become_nobody(plan, jailed: bool) -> None:
    if not jailed:
        os.chown(plan.scratch, NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    for path in plan.readable:
        os.stat(
            path
        )  # an interpreter under /root works in the namespaces' root directory only; said early and by name
    if jailed:
        # The count of processes is per user namespace: without this, programs would use up one another's.
        kernel.libc("unshare", _NEW_USER)


def _limit(plan) -> None:
    limits = {
        "RLIMIT_AS": plan.memory_bytes,
        "RLIMIT_CPU": int(plan.timeout) + 2,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_CORE": 0,
    }
    if plan.mode == "namespaces" or os.getuid() == NOBODY:
        # Elsewhere the limit would count the caller's own processes; there the filter refuses new ones.
        limits["RLIMIT_NPROC"] = _PROCESSES
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            if plan.mode != "unsafe":  # macOS has no working RLIMIT_AS
                raise


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    kernel.call("capset", header, (ctypes.c_uint32 * 6)())


def _become_main() -> None:
    """Leave the traces of an ordinary `python program.py` and none of the launcher's."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "jail"]:
        del sys.modules[name]
    sys.argv = ["program.py"]
    sys.modules["__main__"] = type(sys)("__main__")


def _execute(source: bytes, secret: list[bytes], status: int) -> int:
    write, which, this = os.write, os.getpid, os.getpid()
    try:
        code = compile(source.decode("utf-8", "surrogatepass"), _SOURCE_NAME, "exec")
        namespace = sys.modules["__main__"].__dict__
        namespace["__builtins__"] = builtins
        _run_to_its_end(exec, code, namespace, write, status, secret)
    except BaseException as error:
        if which() == this:  # and not one of its children
            write(status, _explain(error, source))
        _flush(error)
        return 1
    _flush(None)
    return 0


def _run_to_its_end(execute, code, namespace, write, status, secret) -> None:
    # One expression: `secret` is emptied, its content held by the evaluation stack, before `execute` is called, and
    # nothing is looked up by name after it has returned (None, so the slice is the whole). See the module's docstring.
    write(status, secret.pop()[execute(code, namespace) :])


def _explain(error: BaseException, source: bytes) -> bytes:
    """One line for a person. The program's exception may misbehave when it is looked at."""
    name = type(error).__name__
    try:
        if isinstance(error, SystemExit):
            return f"did not run to its end (SystemExit: {repr(error.code)[:100]})".encode("utf-8", "replace")
        message = " ".join(str(error).split())
        line = _failing_line(error, source)
    except BaseException:
        return f"exit 1: {name}".encode("utf-8", "replace")
    parts = [part for part in (f"exit 1: {name}", line, message if message not in line else "") if part]
    return ": ".join(parts).encode("utf-8", "replace")[:400]


def _failing_line(error: BaseException, source: bytes) -> str:
    number, trace = 0, _own_frames(error)
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _SOURCE_NAME:
            number = trace.tb_lineno
        trace = trace.tb_next
    lines = source.decode(errors="replace").splitlines()
    return f"line {number}: {lines[number - 1].strip()[:120]}" if 0 < number <= len(lines) else ""


def _own_frames(error: BaseException):
    """The program's part of the traceback; None for a syntax error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != _SOURCE_NAME:
        trace = trace.tb_next
    return trace


def _flush(error: BaseException | None) -> None:
    try:
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, _own_frames(error))
        sys.stdout.flush()
    except BaseException:
        pass  # the verdict is already given; what is lost is the program's own output
