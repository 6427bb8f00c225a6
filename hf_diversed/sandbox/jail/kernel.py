"""System calls that Python's `os` lacks, by name, for x86_64 and aarch64."""

import ctypes
import os
import sys


# Linux numbers on x86_64 and aarch64; "-" if the machine has no such call.
_TABLE = """
    add_key 248 217; bpf 321 280; capset 126 91; chmod 90 -; chown 92 -; clone 56 220; clone3 435 435;
    fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; fchown 93 55; fchownat 260 54; fcntl 72 25;
    file_setattr 469 469; fork 57 -; fremovexattr 199 16; fsetxattr 190 7; futimesat 261 -;
    io_uring_enter 426 426; io_uring_register 427 427; io_uring_setup 425 425; ioctl 16 29; ioprio_set 251 30;
    kcmp 312 272; keyctl 250 219; kill 62 129; landlock_add_rule 445 445; landlock_create_ruleset 444 444;
    landlock_restrict_self 446 446; lchown 94 -; lremovexattr 198 15; lsetxattr 189 6; memfd_create 319 279;
    memfd_secret 447 447; migrate_pages 256 238; mount_setattr 442 442; move_pages 279 239; mq_open 240 180;
    mq_unlink 241 181; msgctl 71 187; msgget 68 186; msgrcv 70 188; msgsnd 69 189; perf_event_open 298 241;
    pidfd_getfd 438 438; pidfd_open 434 434; pidfd_send_signal 424 424; pivot_root 155 41; prlimit64 302 261;
    process_madvise 440 440; process_mrelease 448 448; process_vm_readv 310 270; process_vm_writev 311 271;
    ptrace 101 117; removexattr 197 14; removexattrat 466 466; request_key 249 218; rt_sigqueueinfo 129 138;
    rt_tgsigqueueinfo 297 240; sched_setaffinity 203 122; sched_setattr 314 274; sched_setparam 142 118;
    sched_setscheduler 144 119; semctl 66 191; semget 64 190; semop 65 193; semtimedop 220 192; setns 308 268;
    setpriority 141 140; setxattr 188 5; setxattrat 463 463; shmat 30 196; shmctl 31 195; shmget 29 194;
    socket 41 198; tgkill 234 131; tkill 200 130; unshare 272 97; userfaultfd 323 282; utime 132 -;
    utimensat 280 88; utimes 235 -; vfork 58 -
"""
_NUMBERS = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for name, *numbers in (entry.split() for entry in _TABLE.split(";"))
}
_MACHINES = ("x86_64", "aarch64")

_machine = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """Return "x86_64" or "aarch64". Raises OSError on other machines and 32-bit interpreters."""
    name = _machine
    if name not in _MACHINES or sys.maxsize < 2**32:
        raise OSError(f"isolation is written for 64-bit {' and '.join(_MACHINES)}, this is {name}")
    return name


def number(name: str) -> int | None:
    """Return the number of a system call on this machine; None if it has no such call."""
    return _NUMBERS[name][_MACHINES.index(machine())]


def call(name: str, *arguments) -> int:
    """Make a system call with ints, bytes (paths), None (NULL) or ctypes structures. Raises OSError."""
    found = number(name)
    assert found is not None, name
    return _checked(name, _libc.syscall(ctypes.c_long(found), *map(_convert, arguments)))


def libc(name: str, *arguments) -> int:
    """Call a function of the C library likewise: `mount`, `umount2`, `unshare`, `prctl`."""
    return _checked(name, getattr(_libc, name)(*map(_convert, arguments)))


def _convert(value):
    if isinstance(value, int):
        return ctypes.c_long(value)
    if isinstance(value, (ctypes.Structure, ctypes.Array)):
        return ctypes.byref(value)
    return ctypes.c_char_p(value)


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
