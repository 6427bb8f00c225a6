"""The process that runs the program: confine itself, run the source, report how it ended, answer the tests.

How a pass is detected: the launcher provides 32 random bytes, which are sent back only if the last statement was
reached. While the program runs, no variable of any frame, module, closure or descriptor refers to them: they are on
the evaluation stack of `_run_to_its_end`, below the call that runs the program. Exiting early, writing to every
descriptor, replacing builtins, or walking frames and containers therefore does not reveal them (from Python 3.14,
`gc.get_referents` of that frame shows its stack). Reading raw memory with ctypes could reveal them; this is not
prevented. Without seccomp, which only unsafe mode allows, a child process can pass in place of the program.

The program can replace every line of this process. That does not pass a test, because the expected values are in
another process.
"""

import builtins
import os
import sys

from . import values
from .confinement import confine


_SOURCE_NAME = "<program>"


def run(job, source: bytes, secret: list[bytes], null: int, output: int, kept: list[int]) -> None:
    """Confine this process, wait for the launcher, run the program, and wait to be killed; never return.

    Args:
        secret: the random bytes, in a list that is emptied here.
        null, output: descriptors for `confine`.
        kept: descriptors of the launcher's messages and, if there are tests, of the connection to them.
    """
    leave = os._exit
    status, *channel = confine(job, null, output, kept)
    if not os.read(status, 1):
        leave(1)
    # Make the interpreter look like `python program.py`, without the launcher's modules.
    for name in [name for name in sys.modules if name.partition(".")[0] == "jail"]:
        del sys.modules[name]
    sys.argv = ["program.py"]
    sys.modules["__main__"] = type(sys)("__main__")
    leave(_execute(source, secret, status, channel))


def _execute(source: bytes, secret: list[bytes], status: int, channel: list[int]) -> int:
    write = os.write
    try:
        code = compile(source.decode("utf-8", "surrogatepass"), _SOURCE_NAME, "exec")
        namespace = sys.modules["__main__"].__dict__
        namespace["__builtins__"] = builtins
        _run_to_its_end(_run, code, namespace, write, status, secret)
        if channel:
            _answer(channel[0], namespace)
        os.read(status, 1)  # until killed
    except BaseException as error:
        write(status, _safely(_explain, error, source, default=b"exit 1: an exception that cannot be shown"))
        if not isinstance(error, SystemExit):
            _safely(_show, error)
        _safely(lambda: sys.stdout.flush())
    return 1


def _run(code, namespace: dict) -> None:
    exec(code, namespace)
    _safely(lambda: sys.stdout.flush())


def _run_to_its_end(run, code, namespace, write, status, secret) -> None:
    # One expression: before `run` is called, `secret` is emptied and its content is on the evaluation stack; no name
    # is looked up after `run` has returned None, which makes the slice the whole. See the module's docstring.
    write(status, secret.pop()[run(code, namespace) :])


def _answer(channel: int, namespace: dict) -> None:
    """Answer requests of the tests until the launcher ends the program."""
    objects: list = []  # by number; objects that the tests refer to stay alive
    numbers: dict[int, int] = {}
    operations: dict = {
        "names": lambda *names: {name: namespace[name] for name in names if name in namespace},
        "call": lambda function, positional, named: function(*positional, **named),
        "getattr": getattr,
        "setattr": setattr,
        "getitem": lambda container, key: container[key],
        **{kind.__name__: kind for kind in (list, len, bool, str, repr)},
    }

    def number_of(thing) -> int:
        if id(thing) not in numbers:
            numbers[id(thing)] = len(objects)
            objects.append(thing)
        return numbers[id(thing)]

    reader = open(channel, "rb")  # noqa: SIM115
    while True:
        operation, *operands = values.decode(values.read_line(reader), objects.__getitem__)
        try:
            answer = values.encode((True, operations[operation](*operands)), number_of)
        except BaseException as error:
            message = _safely(_message, error, default="")
            answer = values.encode((False, type(error).__name__, message[:500]), number_of)
        _safely(lambda: sys.stdout.flush())
        values.write(channel, answer)


def describe(error: BaseException, source: bytes, source_name: str) -> bytes:
    """Return name, line and message of an exception of a source, on one line."""
    name = type(error).__name__
    message = " ".join(_safely(_message, error, default="").split())
    frames = _frames(error, source_name)
    lines = source.decode(errors="replace").splitlines()
    number = frames[-1].tb_lineno if frames else 0
    line = f"line {number}: {lines[number - 1].strip()[:120]}" if 0 < number <= len(lines) else ""
    parts = [part for part in (name, line, message if message not in line else "") if part]
    return ": ".join(parts).encode("utf-8", "replace")[:400]


def _frames(error: BaseException, source_name: str) -> list:
    """Return the traceback's entries in a source, outermost first; none for a syntax error."""
    entries, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source_name:
            entries.append(trace)
        trace = trace.tb_next
    return entries


def _explain(error: BaseException, source: bytes) -> bytes:
    if isinstance(error, SystemExit):
        code = str.__str__(_safely(repr, error.code, default="its code cannot be shown"))
        return f"did not run to its end (SystemExit: {code[:100]})".encode("utf-8", "replace")
    return b"exit 1: " + describe(error, source, _SOURCE_NAME)


def _show(error: BaseException) -> None:
    error.__traceback__ = next(iter(_frames(error, _SOURCE_NAME)), None)
    sys.excepthook(type(error), error, error.__traceback__)


def _message(error: BaseException) -> str:
    return str.__str__(str(error))


def _safely(function, *arguments, default=None):
    """Return the function's result, or `default` if it fails: the program can replace what it calls."""
    try:
        return function(*arguments)
    except BaseException:
        return default
