"""Detection of the isolation that this machine supports, by trying it; the result is cached per process.

Programs run only if files outside are not writable, processes outside cannot be signalled, and no network is
reachable. Two kinds of jail ensure this.

*namespaces* (preferred): user, pid, mount, network, ipc and uts namespaces. A new root directory contains the
interpreter and libraries, mounted read-only, and no /proc; the scratch directory is a tmpfs of 64 MiB. Landlock, if
the kernel has it, and seccomp are additional protection.

*landlock* (if namespaces are forbidden, as in most containers): Landlock (ABI 3, Linux 6.2, or later) protects files;
seccomp refuses sockets, signals, new processes and changes of file metadata. Programs cannot start subprocesses, can
see existence and size of files outside, and have their scratch directory on the host's disk.
"""

import functools
import os
import sys

from hf_diversed.sandbox.launch import SandboxUnavailable, launch


MODES = ("namespaces", "landlock")
_PROBE = "import math; assert math.gcd(6, 4) == 2"
_ADVICE = (
    "Run on Linux with unprivileged user namespaces (sysctl user.max_user_namespaces > 0, "
    "kernel.apparmor_restrict_unprivileged_userns = 0) or with Landlock (Linux 6.2+), with Python in a folder that "
    "every user may read; or accept the risk with --unsafe-code-execution (unsafe=True): only resource limits and a "
    "timeout, so programs have your permissions."
)


def check_platform(unsafe: bool) -> None:
    """Refuse systems that the launcher does not support."""
    if not hasattr(os, "fork"):
        raise SandboxUnavailable(f"code execution needs a POSIX system, got {sys.platform}; run under Linux or WSL.")
    if not sys.executable:
        raise SandboxUnavailable("sys.executable is empty (embedded Python?); code execution starts an interpreter.")
    if not unsafe and sys.platform != "linux":
        raise SandboxUnavailable(f"no isolation on {sys.platform}: namespaces and Landlock are Linux's. {_ADVICE}")


@functools.cache
def probe(mode: str) -> str:
    """Run a harmless program in a jail, once per kind. Return why it failed, or "" if it passed."""
    try:
        result = launch(_PROBE, mode, timeout=20.0, memory_bytes=512 * 2**20)
    except SandboxUnavailable as error:
        return str(error)
    return "" if result.passed else result.reason


def usable_mode() -> str:
    """Return the strongest kind of jail that works here.

    Raises:
        SandboxUnavailable: if none works; the message names the reasons and what to do.
    """
    for mode in MODES:
        if not probe(mode):
            return mode
    reasons = "; ".join(f"{mode}: {probe(mode)}" for mode in MODES)
    raise SandboxUnavailable(f"this machine cannot isolate a program ({reasons}). {_ADVICE}")
