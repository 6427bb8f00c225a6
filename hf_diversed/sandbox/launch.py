"""One program, one fresh interpreter: starts the jail, hands it the program and its tests, reads the report.

The launcher is a new process made by exec and not by fork alone, so the caller may have loaded torch and run threads.
"""

import ast
import builtins
import functools
import os
import shutil
import subprocess
import symtable
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path


# The launcher ends a program by itself; this is for a launcher that hangs. Wall-clock seconds on top of the timeout.
_GRACE = 30.0
_STARTED = b"started\n"
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from jail.main import main; main(sys.argv[1:])"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")


@dataclass(frozen=True)
class Limits:
    """Wall-clock seconds; bytes of address space for each process, and of memory for all processes together."""

    timeout: float
    memory_bytes: int


@dataclass(frozen=True)
class Report:
    """What the launcher saw.

    Attributes:
        ended: "passed", "exit N", "killed by signal N", "timeout", "failed its tests", "left N processes running",
            "wrote to the launcher's descriptor", "more than N MiB in all its processes", "killed with its launcher",
            or "unavailable" where the jail was not set up. That is known before the program starts, so no program can
            bring it about.
        completed: the program's first process reached its last statement, and its tests, if any, passed.
        detail: the exception, or why the jail was not set up; empty if there is nothing to say.
        output: the first 4 KiB that the program printed.
        facts: what the jail consists of, by name.
    """

    ended: str
    completed: bool = False
    detail: str = ""
    output: str = ""
    facts: dict = field(default_factory=dict)


def launch(program: str, mode: str, limits: Limits, tests: str = "") -> Report:
    """Run `program`, and `tests` beside it, in a jail of kind `mode`: "namespaces", "landlock" or "unsafe".

    Raises:
        SyntaxError, ValueError: the tests are no Python.
    """
    source = program.encode("utf-8", "surrogatepass")
    request = f"{' '.join(names_of_the_program(tests))}\n{tests}".encode("utf-8", "surrogatepass") if tests else b""
    scratch = tempfile.mkdtemp(prefix="hf-diversed-")
    try:
        sizes = [str(len(source)), "tested" if tests else "plain"]
        arguments = [mode, str(limits.timeout), str(limits.memory_bytes), *sizes, os.path.realpath(scratch)]
        return _talk(arguments, source + request, limits.timeout + _GRACE)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def names_of_the_program(tests: str) -> list[str]:
    """The names that the tests use and do not define. Builtins are the program's only where nothing else is: a test of
    a function called `sum` means that one, and in `abs(f(1) - 0.5) < 1e-6` it is Python's own `abs` that counts."""
    top = symtable.symtable(tests, "<tests>", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {symbol.get_name() for symbol in top.get_symbols() if symbol.is_namespace()}
    used, tables = set(), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        used |= {symbol.get_name() for symbol in symbols if table is top or symbol.is_global()}
    wanted = used - defined
    return sorted(wanted - set(dir(builtins)) or wanted)


def _talk(arguments: list[str], request: bytes, patience: float) -> Report:
    command = [interpreter(), "-I", "-S", "-c", _START, str(Path(__file__).parent), *arguments, *readable_paths()]
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
            answer, complaint = process.communicate(request, patience)
        except subprocess.TimeoutExpired:
            return Report("timeout")
        finally:
            # The jail dies with its launcher (parent-death signal).
            process.kill()
    report = answer.removeprefix(_STARTED)
    if not report and answer:
        return Report("killed with its launcher")
    if not report:
        return Report("unavailable", detail=complaint.decode(errors="replace").strip()[-500:] or "the launcher died")
    ended, completed, detail, output, facts = ast.literal_eval(report.decode())
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
