"""The process that runs the program: confine itself, run the source, report how it ended, answer the tests.

How a pass is detected: the launcher provides 32 random bytes, which are sent back only if the last statement was
reached. While the program runs, no variable of any frame, module, closure or descriptor refers to them: they are on
the evaluation stack of `_run_to_its_end`, below the call that runs the program. Exiting early, writing to every
descriptor, replacing builtins, or walking frames and containers therefore does not reveal them (from Python 3.14,
`gc.get_referents` of that frame shows its stack). A child has a copy of the stack, but the kernel reports the sender,
and the launcher refuses other senders. Reading raw memory with ctypes could reveal them; this is not prevented.
"""

import builtins
import os
import sys

from . import complaint
from .answering import answer
from .confinement import Plan, confine


_SOURCE_NAME = "<program>"


def run(plan: Plan, privileged: bool, source: bytes, secret: list[bytes], ends: dict) -> None:
    """Confine this process, wait for the launcher, run the program, and wait to be killed; never return.

    Args:
        secret: the random bytes, in a list that is emptied here.
        ends: descriptors by name: "null", "output", "setup", "status", and "channel", None without tests.
    """
    leave = os._exit
    kept = [ends[name] for name in ("status", "channel") if ends[name] is not None]
    status, *channel = confine(plan, privileged, ends["null"], ends["output"], ends["setup"], kept)
    if not os.read(status, 1):
        leave(1)
    _become_main()
    leave(_execute(source, secret, status, channel))


def _become_main() -> None:
    """Make the interpreter look like `python program.py`, without the launcher's modules."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "jail"]:
        del sys.modules[name]
    sys.argv = ["program.py"]
    sys.modules["__main__"] = type(sys)("__main__")


def _execute(source: bytes, secret: list[bytes], status: int, channel: list[int]) -> int:
    write, which, this = os.write, os.getpid, os.getpid()
    try:
        code = compile(source.decode("utf-8", "surrogatepass"), _SOURCE_NAME, "exec")
        namespace = sys.modules["__main__"].__dict__
        namespace["__builtins__"] = builtins
        _run_to_its_end(_run, code, namespace, write, status, secret)
        if which() != this:
            return 0
        if channel:
            answer(channel[0], namespace, _flush)
        os.read(status, 1)  # until killed: the launcher looks for remaining processes while this one is alive
    except BaseException as error:
        if which() == this:  # and not one of its children
            write(status, _explain(error, source))
        if not isinstance(error, SystemExit):
            _show(error)
        _flush()
    return 1


def _run(code, namespace: dict) -> None:
    exec(code, namespace)
    _flush()


def _run_to_its_end(run, code, namespace, write, status, secret) -> None:
    # One expression: before `run` is called, `secret` is emptied and its content is on the evaluation stack; no name
    # is looked up after `run` has returned None, which makes the slice the whole. See the module's docstring.
    write(status, secret.pop()[run(code, namespace) :])


def _explain(error: BaseException, source: bytes) -> bytes:
    try:
        if isinstance(error, SystemExit):
            return f"did not run to its end (SystemExit: {repr(error.code)[:100]})".encode("utf-8", "replace")
    except BaseException:
        pass  # the code cannot be shown; the line below names the exception
    return b"exit 1: " + complaint.describe(error, source, _SOURCE_NAME)


def _show(error: BaseException) -> None:
    try:
        error.__traceback__ = complaint.own_frames(error, _SOURCE_NAME)
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        pass  # only the program's own output is lost


def _flush() -> None:
    try:  # noqa: SIM105 (contextlib costs 20 ms)
        sys.stdout.flush()
    except BaseException:
        pass  # as above
