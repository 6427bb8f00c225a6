"""A system call filter for what neither namespaces nor Landlock prevent. A refused call fails with EPERM.

The filter lists forbidden calls, not allowed ones, because programs are ordinary Python and have other restrictions.
"""

import ctypes
import errno
import os

from . import kernel


# Sockets (UDP and netlink have no Landlock right), other processes' memory, unmapped memory (no limit counts it), and
# kernel interfaces with past vulnerabilities.
# fmt: off
_NEVER = [
    "socket", "unshare", "setns", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise",
    "process_mrelease", "kcmp", "pidfd_getfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf",
    "perf_event_open", "userfaultfd", "add_key", "request_key", "keyctl", "memfd_create", "memfd_secret", "shmget",
    "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink",
]
# fmt: on
# Without namespaces: new processes, signals, scheduling of other processes, System V semaphores, and metadata of files
# outside, which Landlock does not restrict (modes, owners, times, attributes).
# fmt: off
_WITHOUT_NAMESPACES = [
    "fork", "vfork", "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open",
    "pidfd_send_signal", "setpriority", "ioprio_set", "sched_setaffinity", "sched_setscheduler", "sched_setparam",
    "sched_setattr", "migrate_pages", "move_pages", "semget", "semop", "semtimedop", "semctl", "chmod", "fchmod",
    "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat", "utimensat",
    "file_setattr", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr",
    "fremovexattr", "removexattrat",
]
# fmt: on

_CLONE_NAMESPACES = 0x7E020000
_CLONE_THREAD = 0x00010000
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
# These write to the terminal's input, or change inode flags (immutable, append-only) outside.
_TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR = 0x5412, 0x541C, 0x40086602, 0x401C5820

_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
_AUDIT_MACHINE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_SET_SECCOMP, _FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def restrict(namespaces: bool) -> None:
    """Install the filter permanently, for all children too. The thread needs no_new_privs. Raises OSError."""
    code = [
        _instruction(_LOAD, _MACHINE),
        _instruction(_EQUAL, _AUDIT_MACHINE[kernel.machine()], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _REFUSE),
        # A filter cannot read its flags, which are behind a pointer; the C library then uses clone.
        *_refuse("clone3", _ABSENT),
        *_refuse_argument("clone", 0, _ANY_BIT, [_CLONE_NAMESPACES]),
        *_refuse_argument("ioctl", 1, _EQUAL, [_TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR]),
    ]
    for name in _NEVER if namespaces else _NEVER + _WITHOUT_NAMESPACES:
        code += _refuse(name)
    if not namespaces:
        code += _refuse_argument("clone", 0, _ANY_BIT, [_CLONE_THREAD], otherwise=True)
        # Limits of other processes; its own have pid 0 or its own pid.
        code += _refuse_argument("prlimit64", 0, _EQUAL, [0, os.getpid()], otherwise=True)
        # These make the kernel send signals to another process.
        code += _refuse_argument("fcntl", 1, _EQUAL, [_F_SETOWN, _F_SETOWN_EX, _F_SETSIG])
    code.append(_instruction(_RETURN, _ALLOW))
    kernel.libc("prctl", _SET_SECCOMP, _FILTER, _Program(len(code), b"".join(code)), 0, 0)


def _instruction(operation: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    # struct sock_filter; both machines are little-endian.
    return operation.to_bytes(2, "little") + bytes((jump_true, jump_false)) + value.to_bytes(4, "little")


def _refuse(name: str, answer: int = _REFUSE) -> list[bytes]:
    found = kernel.number(name)
    if found is None:
        return []
    return [_instruction(_EQUAL, found, 0, 1), _instruction(_RETURN, answer)]


def _refuse_argument(name: str, index: int, test: int, values: list[int], otherwise: bool = False) -> list[bytes]:
    """Refuse a call whose argument (its low 32 bits) matches one of `values`, or, `otherwise`, none of them."""
    found = kernel.number(name)
    assert found is not None, name
    body = [_instruction(_LOAD, _ARGUMENT + 8 * index)]
    for position, value in enumerate(values):
        left = len(values) - 1 - position
        # A match skips one instruction after the tests: the refusal, or the jump over it.
        body.append(_instruction(test, value, left + 1, 0))
    if not otherwise:
        body.append(_instruction(_JUMP, 1))
    body += [_instruction(_RETURN, _REFUSE), _instruction(_LOAD, _NUMBER)]
    return [_instruction(_EQUAL, found, 0, len(body)), *body]
