"""One program, one fresh interpreter: starts the jail, hands it the program and a secret, reads the report.

The launcher is a new process made by exec and not by fork alone, so the caller may have loaded torch and run threads.
"""

import ast
import functools
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


TOKEN_BYTES = 32
# The launcher ends a program by itself; this is for a launcher that hangs. Wall-clock seconds on top of the timeout.
_GRACE = 30.0
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from jail.main import main; main(sys.argv[1:])"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")


@dataclass(frozen=True)
class Limits:
    """Wall-clock seconds for the program, bytes of address space for each of its processes."""

    timeout: float
    memory_bytes: int


@dataclass(frozen=True)
class Report:
    """What the launcher saw.

    Attributes:
        ended: "exit N", "killed by signal N", "timeout", or "unavailable" where the jail was not set up.
        completed: the secret came back, so the program's last statement was reached.
        detail: the program's exception, or why the jail was not set up; empty if there is nothing to say.
        output: the first 4 KiB that the program printed.
        facts: what the jail consists of, by name.
    """

    ended: str
    completed: bool = False
    detail: str = ""
    output: str = ""
    facts: dict = field(default_factory=dict)


def launch(program: str, mode: str, limits: Limits) -> Report:
    """Run `program` in a jail of kind `mode`: "namespaces", "landlock" or "unsafe"."""
    token = secrets.token_bytes(TOKEN_BYTES)
    scratch = tempfile.mkdtemp(prefix="hf-diversed-")
    try:
        return _talk(_command(mode, limits, os.path.realpath(scratch)), token, program, limits.timeout + _GRACE)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _command(mode: str, limits: Limits, scratch: str) -> list[str]:
    arguments = [mode, str(limits.timeout), str(limits.memory_bytes), scratch, *readable_paths()]
    return [interpreter(), "-I", "-S", "-c", _START, str(Path(__file__).parent), *arguments]


def _talk(command: list[str], token: bytes, program: str, patience: float) -> Report:
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        start_new_session=True,  # the terminal's Ctrl-C is for the caller, who then cleans up
    ) as process:
        try:
            answer, complaint = process.communicate(token + program.encode("utf-8", "surrogatepass"), patience)
        except subprocess.TimeoutExpired:
            return Report("timeout")
        finally:
            # The jail dies with its launcher (parent-death signal).
            process.kill()
    if not answer:
        return Report("unavailable", detail=complaint.decode(errors="replace").strip()[-500:] or "the launcher died")
    ended, said, output, facts = ast.literal_eval(answer.decode())
    completed = token in said
    # Programs can write there too, as noise; what counts is the secret.
    honest = ended == "unavailable" or said.startswith((b"exit 1: ", b"did not run to its end "))
    detail = said.decode("utf-8", "replace")[:500] if honest and not completed else ""
    return Report(ended, completed, detail, output.decode("utf-8", "replace"), facts)


@functools.cache
def interpreter() -> str:
    """The real file behind `sys.executable`: a virtual environment is neither needed nor visible in the jail."""
    return os.path.realpath(sys.executable)


@functools.cache
def readable_paths() -> tuple[str, ...]:
    """What a program may read and execute: the interpreter, its standard library and the system's libraries."""
    prefixes = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    paths = [interpreter(), *_LIBRARIES, *_SYSTEM_FILES]
    paths += [os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64")]
    paths += [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sysconfig.get_config_var("LIBDIR") or ""]
    # A top-level link such as /lib -> usr/lib stays in the list: the jail's root has to have it too.
    return tuple(sorted({path for path in paths if path and os.path.exists(path)}))
