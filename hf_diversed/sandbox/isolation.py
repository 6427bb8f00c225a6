"""Which jail this machine can give, found out by building one; the answer is kept for the life of the process.

Three things must hold, or nothing runs: files outside are not writable, processes outside cannot be signalled, no
network is reachable. Two kinds of jail hold them.

*namespaces* (preferred): user, pid, mount, network, ipc and uts namespaces. The root directory is a new one with the
interpreter and libraries mounted read-only, without /proc; the scratch directory is a tmpfs of 64 MiB. Landlock, where
the kernel has it, and seccomp are a second lock on the same doors.

*landlock* (where namespaces are forbidden, as in most containers): Landlock (ABI 3 and later, Linux 6.2) guards the
files, seccomp refuses sockets, signals, new processes and changes of files' metadata. A program that starts a
subprocess fails here; existence and size of files outside can be seen; the scratch directory is on the host's disk.
"""

import functools
import os
import sys

from hf_diversed.sandbox.launch import Limits, Report, launch


MODES = ("namespaces", "landlock")
_PROBE = "import math; assert math.gcd(6, 4) == 2"
_PROBE_LIMITS = Limits(timeout=20.0, memory_bytes=512 * 2**20)
_ADVICE = (
    "Run on Linux with unprivileged user namespaces (sysctl user.max_user_namespaces > 0, "
    "kernel.apparmor_restrict_unprivileged_userns = 0) or with Landlock (Linux 6.2+), with Python in a folder that "
    "everyone may read; or accept the risk with --unsafe-code-execution (unsafe=True): resource limits and a timeout "
    "only, so a program can do to your files whatever you can."
)


class SandboxUnavailable(RuntimeError):
    """The machine cannot isolate a program as promised; nothing was run."""


def check_platform(unsafe: bool) -> None:
    """Refuse systems on which the launcher itself cannot work."""
    if not hasattr(os, "fork"):
        raise SandboxUnavailable(f"code execution needs a POSIX system, got {sys.platform}; run under Linux or WSL.")
    if not sys.executable:
        raise SandboxUnavailable("sys.executable is empty (embedded Python?); code execution starts an interpreter.")
    if not unsafe and sys.platform != "linux":
        raise SandboxUnavailable(f"no isolation on {sys.platform}: namespaces and Landlock are Linux's. {_ADVICE}")


@functools.cache
def probe(mode: str) -> Report:
    """Build the jail once around a harmless program."""
    return launch(_PROBE, mode, _PROBE_LIMITS)


def usable_mode() -> str:
    """The strongest kind of jail that works here.

    Raises:
        SandboxUnavailable: none does; the message says why and what to do.
    """
    for mode in MODES:
        if probe(mode).completed:
            return mode
    reasons = "; ".join(f"{mode}: {_failure(probe(mode))}" for mode in MODES)
    raise SandboxUnavailable(f"this machine cannot isolate a program ({reasons}). {_ADVICE}")


def describe_isolation() -> dict:
    """Say what isolates programs on this machine, for provenance. Never raises.

    Returns:
        "mode" ("namespaces", "landlock" or None), "landlock_abi" (0: none), "seccomp", "uid" (of the programs),
        "uid_dropped" and, where a kind of jail does not work, "unavailable" with the reason by kind.
    """
    description: dict = {"mode": None, "landlock_abi": 0, "seccomp": False, "uid": None, "uid_dropped": False}
    try:
        check_platform(unsafe=False)
    except SandboxUnavailable as error:
        return description | {"unavailable": {"platform": str(error)}}
    failures = {}
    for mode in MODES:
        report = probe(mode)
        if report.completed:
            flags = {name: bool(report.facts[name]) for name in ("seccomp", "uid_dropped")}
            description |= {"mode": mode, **report.facts, **flags}
            break
        failures[mode] = _failure(report)
    return description | ({"unavailable": failures} if failures else {})


def _failure(report: Report) -> str:
    return report.detail or report.ended
