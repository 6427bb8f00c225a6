"""Restrictions of a process before it runs foreign code: ids, limits, capabilities, files, system calls."""

import ctypes
import os
import resource

from . import kernel, landlock, namespaces, seccomp


READY = b"ready"
_UNPRIVILEGED_ID = 65534
_SIGKILL = 9
_THREADS = 32
_OPEN_FILES = 64
_FILE_BYTES = 16 * 2**20
_LEAST_LANDLOCK = 3  # earlier ones do not restrict truncate()
_NEW_USER = 0x10000000
_SET_PARENT_DEATH_SIGNAL, _SET_NO_NEW_PRIVILEGES = 1, 38
_CAPABILITY_VERSION = 0x20080522


def confine(job, null: int, output: int, kept: list[int]) -> list[int]:
    """Confine this process permanently, and send `READY` on the first kept descriptor, or the reason of a failure.

    Args:
        job: the kind of jail and the limits, from `launch`.
        null, output: descriptors that become 0, and 1 and 2.
        kept: descriptors to keep; all others are closed.

    Returns:
        The new numbers of the kept descriptors, from 63 down. On failure, the process ends.
    """
    try:
        os.setpgid(0, 0)
        kept = _arrange_descriptors(null, output, kept)
        _give_up(job)
    except BaseException as error:
        os.write(kept[0], f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(1)
    os.write(kept[0], READY)
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


def _give_up(job) -> None:
    """Give up everything that the program must not have. Raises OSError if any of it fails."""
    os.environ.clear()
    os.umask(0o077)
    if job.mode == "unsafe":
        os.chdir(job.scratch)
        _limit(job)
        try:
            kernel.check_machine()
            kernel.libc("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
            seccomp.restrict(job.mode)
        except (OSError, AttributeError):
            pass  # another system, machine or container, without filters: programs can start processes
        return
    jailed = job.mode == "namespaces"
    if os.geteuid() == 0:
        _drop_root(job, jailed)
    kernel.libc("prctl", _SET_PARENT_DEATH_SIGNAL, _SIGKILL, 0, 0, 0)
    kernel.libc("prctl", _SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    os.chdir(job.scratch)
    _limit(job)
    kernel.call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
    abi = landlock.abi()
    if abi < _LEAST_LANDLOCK and not jailed:
        raise OSError(f"Landlock ABI {_LEAST_LANDLOCK} or later is needed, this kernel has {abi}")
    if abi:
        landlock.restrict(abi, job.readable, namespaces.DEVICES, job.scratch)
    seccomp.restrict(job.mode)


def _drop_root(job, jailed: bool) -> None:
    if not jailed:
        os.chown(job.scratch, _UNPRIVILEGED_ID, _UNPRIVILEGED_ID)
    os.setgroups([])
    os.setresgid(_UNPRIVILEGED_ID, _UNPRIVILEGED_ID, _UNPRIVILEGED_ID)
    os.setresuid(_UNPRIVILEGED_ID, _UNPRIVILEGED_ID, _UNPRIVILEGED_ID)
    for path in job.readable:
        # An interpreter under /root works only with namespaces; fail early, naming the path.
        os.stat(path)
    if jailed:
        # The process limit is per user namespace; without one of its own, programs would share the limit.
        kernel.libc("unshare", _NEW_USER)


def _limit(job) -> None:
    # Memory that no limit counts: the scratch directory (64 MiB in namespaces), and buffers of pipes and sockets,
    # whose number is limited.
    limits = {
        "RLIMIT_AS": job.memory_bytes,
        "RLIMIT_CPU": int(job.timeout) + 2,
        "RLIMIT_FSIZE": _FILE_BYTES,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_CORE": 0,
    }
    if job.mode == "namespaces" or os.getuid() == _UNPRIVILEGED_ID:
        # The limit counts threads; otherwise it would also count those of the caller's processes.
        limits["RLIMIT_NPROC"] = _THREADS
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            if job.mode != "unsafe":  # macOS has no working RLIMIT_AS
                raise
