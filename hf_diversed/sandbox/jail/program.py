"""The process that becomes the program: locks itself in, runs the source, says how that ended, answers the tests.

How a pass is told from everything else. The launcher leaves 32 random bytes; they come back only if the last statement
was reached. While the program runs, no variable of any frame, module, closure or descriptor refers to them: they wait
on the evaluation stack of `_run_to_its_end`, behind the call that runs the program. So neither leaving early, nor
writing to every descriptor, nor replacing builtins, nor walking frames or the heap's containers brings them back (from
Python 3.14 on, `gc.get_referents` of that one frame shows its stack). A child has a copy of that stack; its bytes are
refused, since the kernel tells the launcher who sent them. What could: reading raw memory with ctypes. Program and
witness share an address space, and no more than this is claimed.
"""

import builtins
import os
import sys

from . import complaint
from .answering import answer
from .confinement import Plan, confine


_SOURCE_NAME = "<program>"


def run(plan: Plan, privileged: bool, source: bytes, secret: list[bytes], ends: dict) -> None:
    """Confine this process, wait for the launcher's word, run the program, and stay until killed: it never returns.

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
    """Leave the traces of an ordinary `python program.py` and none of the launcher's."""
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
        os.read(status, 1)  # until killed: the launcher looks for processes left behind, and needs this one alive
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
    # One expression: `secret` is emptied, its content held by the evaluation stack, before `run` is called, and
    # nothing is looked up by name after it has returned (None, so the slice is the whole). See the module's docstring.
    write(status, secret.pop()[run(code, namespace) :])


def _explain(error: BaseException, source: bytes) -> bytes:
    try:
        if isinstance(error, SystemExit):
            return f"did not run to its end (SystemExit: {repr(error.code)[:100]})".encode("utf-8", "replace")
    except BaseException:
        pass  # a code that cannot be shown; the line below names the exception
    return b"exit 1: " + complaint.describe(error, source, _SOURCE_NAME)


def _show(error: BaseException) -> None:
    try:
        error.__traceback__ = complaint.own_frames(error, _SOURCE_NAME)
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException:
        pass  # the verdict is already given; what is lost is the program's own output


def _flush() -> None:
    try:  # noqa: SIM105 (contextlib costs 20 ms)
        sys.stdout.flush()
    except BaseException:
        pass  # as above
