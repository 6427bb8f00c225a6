"""Run one program in a new interpreter: start the jail, pass it the program and its tests, read the report.

The launcher is started by exec, not by fork alone, so the caller may have loaded torch and started threads.
"""

import builtins
import functools
import json
import os
import subprocess
import symtable
import sys
import sysconfig
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO


# Seconds after the timeout at which a launcher that hangs is killed; normally the launcher ends the program itself.
_GRACE = 30.0
_STARTED = "started\n"
_START = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from jail.main import main; main()"
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")


class SandboxUnavailable(RuntimeError):
    """This machine cannot isolate a program; nothing was run."""


@dataclass(frozen=True)
class ProgramResult:
    """The result of one program.

    Attributes:
        passed: True if the program ran to its end and passed its tests, if it has any.
        reason: "passed", "exit 1: AssertionError: line 4: assert f(2) == 4", "timeout", "killed by signal 9",
            "did not run to its end (exit 0)", "test failed: AssertionError: line 1: assert f(2) == 4", "wrote to the
            launcher's descriptor" or "killed with its launcher".
        output: the first 4 KiB of stdout and stderr together.
    """

    passed: bool
    reason: str
    output: str = ""


def launch(program: str, mode: str, timeout: float, memory_bytes: int, tests: str = "") -> ProgramResult:
    """Run `program`, and `tests` beside it, in a jail of kind `mode`: "namespaces", "landlock" or "unsafe".

    Args:
        timeout: wall-clock seconds.
        memory_bytes: address space of the program, and of its tests separately.

    Raises:
        SyntaxError, ValueError: if the tests are not valid Python.
        SandboxUnavailable: if the jail was not set up. That is determined before the program starts, so no program can
            cause it.
    """
    source, tests_source = (text.encode("utf-8", "surrogatepass") for text in (program, tests))
    # Not in the command line, which the program can read.
    names = json.dumps(names_of_the_program(tests) if tests else []).encode()
    with tempfile.TemporaryFile() as request:
        request.write(source + names + b"\n" + tests_source)
        request.seek(0)
        scratch = tempfile.mkdtemp(prefix="hf-diversed-")
        job = {
            "mode": mode, "timeout": timeout, "memory_bytes": memory_bytes, "source_bytes": len(source),
            "tested": bool(tests), "scratch": os.path.realpath(scratch), "readable": readable_paths(),
        }  # fmt: skip
        try:
            # The file that `sys.executable` links to: the jail contains no virtual environment (see `readable_paths`).
            command = [os.path.realpath(sys.executable), "-I", "-S", "-c", _START, json.dumps(job)]
            return _follow(command, request, timeout + _GRACE)
        finally:
            _delete(scratch)


def _delete(scratch: str) -> None:
    """Delete a program's directory. `shutil.rmtree` recurses into it, and keeps what it may not list."""
    if os.path.islink(scratch):  # by a program without a jail
        os.unlink(scratch)
        return
    folders = [scratch]
    for folder in folders:  # subfolders are moved up, because the paths of deep ones are too long
        entries: list[os.DirEntry] = []
        with suppress(OSError):
            os.chmod(folder, 0o700)
            entries += os.scandir(folder)
        for entry in entries:
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)  # needed to move it
                folders.append(tempfile.mkdtemp(prefix="hf-diversed-", dir=os.path.dirname(scratch)))
                os.rename(entry.path, folders[-1])
        with suppress(OSError):
            os.rmdir(folder)


def names_of_the_program(tests: str) -> list[str]:
    """Return the names that the tests use and do not define. Builtins are included only if there is no other name: a
    test of a function called `sum` uses the program's, but `abs(f(1) - 0.5) < 1e-6` uses Python's `abs`."""
    top = symtable.symtable(tests, "<tests>", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {symbol.get_name() for symbol in top.get_symbols() if symbol.is_namespace()}
    used, tables = set(), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        symbols = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        used |= {symbol.get_name() for symbol in symbols if table is top or symbol.is_global()}
    undefined = used - defined
    return sorted(undefined - set(dir(builtins)) or undefined)


def _follow(command: list[str], request: IO[bytes], patience: float) -> ProgramResult:
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        # In a session of its own: Ctrl-C in the terminal must reach the caller only, which then cleans up.
        done = subprocess.run(
            command, stdin=request, capture_output=True, timeout=patience, cwd="/", env=environment,
            start_new_session=True,
        )  # fmt: skip
        answer, complaint, end = done.stdout, done.stderr, "killed with its launcher"
    except subprocess.TimeoutExpired as error:  # the launcher was killed, and the jail with it (parent-death signal)
        answer, complaint, end = error.stdout or b"", b"the launcher hangs", "timeout"
    if not answer:
        raise SandboxUnavailable(complaint.decode(errors="replace").strip()[-500:] or "the launcher died")
    output = ""
    if report := answer.decode().removeprefix(_STARTED):
        end, output = json.loads(report)
    return ProgramResult(end == "passed", end, output)


@functools.cache
def readable_paths() -> tuple[str, ...]:
    """Return the paths that a program may read and execute: interpreter, standard library and system libraries.

    Nothing of a virtual environment is among them, except the interpreter itself if the environment has a copy of it.
    """
    prefixes = {os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix)}
    paths = [os.path.realpath(sys.executable), *_LIBRARIES, *_SYSTEM_FILES]
    paths += [os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64")]
    # In a virtual environment, "platbase" is the environment, and "platstdlib" contains its site-packages.
    base = {"platbase": sys.base_exec_prefix}
    paths += [sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")]
    paths.append(sysconfig.get_config_var("LIBDIR") or "")
    # Top-level links such as /lib -> usr/lib are kept, because the jail's root needs them.
    return tuple(sorted({path for path in paths if path and os.path.exists(path)}))
