"""Restrictions of a process before it runs foreign code: ids, limits, capabilities, files, system calls."""

import ctypes
import os
import resource

from . import kernel, landlock, namespaces, seccomp


NOBODY = 65534
SIGKILL = 9
READY = b"ready"
_PROCESSES = 32
_OPEN_FILES = 64
_FILE_BYTES = 16 * 2**20
_LEAST_LANDLOCK = 3  # earlier ones do not restrict truncate()
_NEW_USER = 0x10000000
_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38
_CAPABILITY_VERSION = 0x20080522


class Plan:
    """The launcher's command line. `readable` and, at first, `scratch` are paths of the host."""

    def __init__(self, arguments: list[str]):
        self.mode = arguments[0]
        self.timeout = float(arguments[1])
        self.memory_bytes = int(arguments[2])
        self.source_bytes = int(arguments[3])
        self.tested = arguments[4] == "tested"
        self.scratch = arguments[5]
        self.readable = arguments[6:]


def confine(plan: Plan, privileged: bool, null: int, output: int, setup: int, kept: list[int]) -> list[int]:
    """Confine this process permanently and report on `setup`, which is closed before foreign code runs.

    Args:
        plan: the kind of jail and the limits.
        privileged: the caller is root, so the uid is changed.
        null, output: descriptors that become 0, and 1 and 2.
        kept: descriptors to keep; all others are closed.

    Returns:
        The new numbers of the kept descriptors, from 63 down. On failure, the process reports the reason and ends.
    """
    try:
        os.setpgid(0, 0)
        *kept, setup = _arrange_descriptors(null, output, [*kept, setup])
        _give_up(plan, privileged)
    except BaseException as error:
        os.write(setup, f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(1)
    os.write(setup, READY)
    os.close(setup)
    return kept


def _arrange_descriptors(null: int, output: int, kept: list[int]) -> list[int]:
    """Keep 0, 1, 2 and the kept ones open, the latter as high numbers, which programs do not use by accident."""
    places = [_OPEN_FILES - 1 - number for number in range(len(kept))]
    for place, old in zip(places, kept):
        os.dup2(old, place, inheritable=False)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, places[-1])
    os.closerange(_OPEN_FILES, 256)
    return places


def _give_up(plan: Plan, privileged: bool) -> None:
    """Give up everything that the program must not have. Raises OSError if any of it fails."""
    os.environ.clear()
    os.umask(0o077)
    if plan.mode == "unsafe":
        os.chdir(plan.scratch)
        _limit(plan)
        return
    jailed = plan.mode == "namespaces"
    if privileged:
        _become_nobody(plan, jailed)
    kernel.libc("prctl", _SET_PARENT_DEATH_SIGNAL, SIGKILL, 0, 0, 0)
    kernel.libc("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    os.chdir(plan.scratch)
    _limit(plan)
    _drop_capabilities()
    abi = landlock.abi()
    if abi < _LEAST_LANDLOCK and not jailed:
        raise OSError(f"Landlock ABI {_LEAST_LANDLOCK} or later is needed, this kernel has {abi}")
    if abi:
        landlock.restrict(abi, plan.readable, list(namespaces.DEVICES), plan.scratch)
    seccomp.restrict(namespaces=jailed)


def _become_nobody(plan: Plan, jailed: bool) -> None:
    if not jailed:
        os.chown(plan.scratch, NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    for path in plan.readable:
        # An interpreter under /root works only with namespaces; fail early, naming the path.
        os.stat(path)
    if jailed:
        # The process limit is per user namespace; without one of its own, programs would share the limit.
        kernel.libc("unshare", _NEW_USER)


def _limit(plan: Plan) -> None:
    limits = {
        "RLIMIT_AS": plan.memory_bytes,
        "RLIMIT_CPU": int(plan.timeout) + 2,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_CORE": 0,
    }
    if plan.mode == "namespaces" or os.getuid() == NOBODY:
        # Otherwise the limit would count the caller's processes; there the filter refuses new ones.
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
