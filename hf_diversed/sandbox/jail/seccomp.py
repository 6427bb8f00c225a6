"""A system call filter for what neither namespaces nor Landlock prevent. A refused call fails with EPERM.

Programs cannot start processes, so a limit per process limits the program, and killing one process ends it.

The filter lists forbidden calls, not allowed ones, because programs are ordinary Python and have other restrictions.
"""

import ctypes
import errno
import os

from . import kernel


# Sockets (UDP and netlink have no Landlock right), other processes' memory, unmapped memory, and kernel interfaces
# with past vulnerabilities. No limit counts unmapped memory: one pipe can hold 512 MiB by vmsplice of huge pages, and
# 2 GiB by splice or sendfile of a page of each large folio of deleted files; setsockopt enlarges buffers; messages
# hold descriptors that are closed. Landlock does not restrict flock, by which processes outside can wait for a
# readable file, nor inotify and fanotify, which report names of files.
_NEVER = kernel.numbers("""
    socket 41 198; unshare 272 97; setns 308 268; ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271;
    process_madvise 440 440; process_mrelease 448 448; kcmp 312 272; pidfd_getfd 438 438; io_uring_setup 425 425;
    io_uring_enter 426 426; io_uring_register 427 427; bpf 321 280; perf_event_open 298 241; userfaultfd 323 282;
    add_key 248 217; request_key 249 218; keyctl 250 219; memfd_create 319 279; memfd_secret 447 447; shmget 29 194;
    shmat 30 196; shmctl 31 195; msgget 68 186; msgsnd 69 189; msgrcv 70 188; msgctl 71 187; mq_open 240 180;
    mq_unlink 241 181; vmsplice 278 75; splice 275 76; sendfile 40 71; setsockopt 54 208; sendmsg 46 211;
    sendmmsg 307 269; flock 73 32; inotify_init 253 -; inotify_init1 294 26; fanotify_init 300 262
""")
_NEW_PROCESSES = kernel.numbers("fork 57 -; vfork 58 -")
# Without namespaces: signals, scheduling of other processes, System V semaphores, and metadata of files outside, which
# Landlock does not restrict (modes, owners, times, attributes).
_WITHOUT_NAMESPACES = kernel.numbers("""
    kill 62 129; tkill 200 130; tgkill 234 131; rt_sigqueueinfo 129 138;
    rt_tgsigqueueinfo 297 240; pidfd_open 434 434; pidfd_send_signal 424 424; setpriority 141 140; ioprio_set 251 30;
    sched_setaffinity 203 122; sched_setscheduler 144 119; sched_setparam 142 118; sched_setattr 314 274;
    migrate_pages 256 238; move_pages 279 239; semget 64 190; semop 65 193; semtimedop 220 192; semctl 66 191;
    chmod 90 -; fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; chown 92 -; fchown 93 55; lchown 94 -;
    fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88; file_setattr 469 469;
    setxattr 188 5; lsetxattr 189 6; fsetxattr 190 7; setxattrat 463 463; removexattr 197 14; lremovexattr 198 15;
    fremovexattr 199 16; removexattrat 466 466
""")
_BY_ARGUMENT = kernel.numbers(
    "clone 56 220; clone3 435 435; close_range 436 436; fcntl 72 25; ioctl 16 29; prlimit64 302 261; socketpair 53 199"
)

_CLONE_THREAD, _CLONE_FILES, _CLOSE_RANGE_UNSHARE = 0x00010000, 0x00000400, 2
_UNIX, _DATAGRAM = 1, 2
# These make the kernel send signals to another process; the last two are ioctls of sockets.
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
# Like flock and inotify: a lease delays processes that open the file, the others report changes of a directory.
_F_SETLEASE, _F_NOTIFY, _F_SETDELEG = 1024, 1026, 1040
# These write to the terminal's input.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# FS_IOC_SETFLAGS, FSSETXATTR, SETVERSION, ENABLE_VERITY: these change the metadata of files outside.
_FILE_METADATA = (0x40086602, 0x401C5820, 0x40087602, 0x40806685)

_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _ABSENT = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
_NUMBER, _MACHINE, _ARGUMENT = 0, 4, 16
_AUDIT_MACHINE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000
_SET_SECCOMP, _FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def restrict(mode: str) -> None:
    """Install the filter permanently. The thread needs no_new_privs. Raises OSError if the kernel refuses it.

    Args:
        mode: the kind of jail; "unsafe" refuses new processes only.
    """
    code = [
        _instruction(_LOAD, _MACHINE),
        _instruction(_EQUAL, _AUDIT_MACHINE[os.uname().machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32_BIT, 0, 1),
        _instruction(_RETURN, _REFUSE),
        # A filter cannot read its flags, which are behind a pointer; the C library then uses clone.
        *_refuse(_BY_ARGUMENT["clone3"], _ABSENT),
        *_refuse_argument("clone", 0, _ANY_BIT, [_CLONE_THREAD], otherwise=True),
    ]
    refused = dict(_NEW_PROCESSES)
    if mode != "unsafe":
        refused |= _NEVER
        # A thread with descriptors of its own could exceed their limit.
        code += _refuse_argument("clone", 0, _ANY_BIT, [_CLONE_FILES], otherwise=True)
        code += _refuse_argument("close_range", 2, _ANY_BIT, [_CLOSE_RANGE_UNSHARE])
        # A paired datagram socket (SOCK_DGRAM, SOCK_RAW) can still send to others; other families load kernel modules.
        code += _refuse_argument("socketpair", 0, _EQUAL, [_UNIX], otherwise=True)
        code += _refuse_argument("socketpair", 1, _ANY_BIT, [_DATAGRAM])
        code += _refuse_argument("ioctl", 1, _EQUAL, [_TIOCSTI, _TIOCLINUX, *_FILE_METADATA])
        code += _refuse_argument("fcntl", 1, _EQUAL, [_F_SETLEASE, _F_NOTIFY, _F_SETDELEG])
    if mode == "landlock":
        refused |= _WITHOUT_NAMESPACES
        # Limits of other processes; its own have pid 0 or its own pid.
        code += _refuse_argument("prlimit64", 0, _EQUAL, [0, os.getpid()], otherwise=True)
        code += _refuse_argument("fcntl", 1, _EQUAL, [_F_SETOWN, _F_SETOWN_EX, _F_SETSIG])
        code += _refuse_argument("ioctl", 1, _EQUAL, [_FIOSETOWN, _SIOCSPGRP])
    for number in refused.values():
        code += _refuse(number)
    code.append(_instruction(_RETURN, _ALLOW))
    kernel.libc("prctl", _SET_SECCOMP, _FILTER, _Program(len(code), b"".join(code)), 0, 0)


def _instruction(operation: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    # struct sock_filter; both machines are little-endian.
    return operation.to_bytes(2, "little") + bytes((jump_true, jump_false)) + value.to_bytes(4, "little")


def _refuse(number: int, answer: int = _REFUSE) -> list[bytes]:
    return [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, answer)]


def _refuse_argument(name: str, index: int, test: int, values: list[int], otherwise: bool = False) -> list[bytes]:
    """Refuse a call whose argument (its low 32 bits) matches one of `values`, or, `otherwise`, none of them."""
    body = [_instruction(_LOAD, _ARGUMENT + 8 * index)]
    for position, value in enumerate(values):
        left = len(values) - 1 - position
        # A match skips one instruction after the tests: the refusal, or the jump over it.
        body.append(_instruction(test, value, left + 1, 0))
    if not otherwise:
        body.append(_instruction(_JUMP, 1))
    body += [_instruction(_RETURN, _REFUSE), _instruction(_LOAD, _NUMBER)]
    return [_instruction(_EQUAL, _BY_ARGUMENT[name], 0, len(body)), *body]
