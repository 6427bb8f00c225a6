"""Landlock for the calling thread and its children: access to listed files only, no TCP, no signals outside."""

import ctypes
import errno
import os
import stat

from . import kernel


_CREATE_VERSION = 1
_RULE_PATH_BENEATH = 1
# Rights by the ABI that added them; ABI 1 has bits 0 to 12.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_KNOWN_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
_MOST_BITS = 16
_ON_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP_BIND_AND_CONNECT = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """Return the kernel's Landlock version; 0 if it has none or it is disabled."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _CREATE_VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def restrict(version: int, readable: list[str], devices: tuple[str, ...], writable: str) -> None:
    """Allow reading and executing beneath `readable`, reading and writing `devices`, everything beneath `writable`.

    The calling thread needs no_new_privs. Raises OSError if the kernel refuses; then nothing is restricted.
    """
    everything = (1 << _KNOWN_BITS.get(version, _MOST_BITS)) - 1
    # Older kernels have a shorter structure.
    fields = [everything, _TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS]
    fields = fields[: 3 if version >= 6 else 2 if version >= 4 else 1]
    rules = kernel.call("landlock_create_ruleset", (ctypes.c_uint64 * len(fields))(*fields), 8 * len(fields), 0)
    for path in readable:
        _allow(rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in devices:
        _allow(rules, path, everything & (_READ_FILE | _WRITE_FILE | _TRUNCATE))
    _allow(rules, writable, everything)
    kernel.call("landlock_restrict_self", rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(parent).st_mode):
        rights &= _ON_A_FILE
    kernel.call("landlock_add_rule", rules, _RULE_PATH_BENEATH, _PathBeneath(rights, parent), 0)
    os.close(parent)
