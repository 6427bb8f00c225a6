"""System calls that Python's `os` lacks, by name, for x86_64 and aarch64."""

import ctypes
import os
import sys


_MACHINES = ("x86_64", "aarch64")

_machine = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)


def check_machine() -> None:
    """Raise OSError if the numbers of system calls on this machine are not known."""
    if _machine not in _MACHINES or sys.maxsize < 2**32:
        raise OSError(f"isolation is written for 64-bit {' and '.join(_MACHINES)}, this is {_machine}")


def numbers(table: str) -> dict[str, int]:
    """Return the numbers of system calls on this machine, without those that it lacks.

    Args:
        table: "name x86_64 aarch64; ...", with "-" for a machine that has no such call.
    """
    if _machine not in _MACHINES:
        return {}
    column = 1 + _MACHINES.index(_machine)
    rows = [row.split() for row in table.split(";")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


_CALLS = numbers(
    "capset 126 91; landlock_add_rule 445 445; landlock_create_ruleset 444 444; landlock_restrict_self 446 446; "
    "mount_setattr 442 442; pivot_root 155 41"
)


def call(name: str, *arguments) -> int:
    """Make a system call with ints, bytes (paths), None (NULL) or ctypes structures. Raises OSError."""
    return _checked(name, _libc.syscall(ctypes.c_long(_CALLS[name]), *map(_convert, arguments)))


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
