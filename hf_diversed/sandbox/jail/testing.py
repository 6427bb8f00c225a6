"""The tests' process, a sibling of the program's: run the tests and request values from the program.

A name that the tests use and do not define is the program's. Calling it sends copies of the arguments and returns the
result: builtins as new exact builtins, so `==`, `<`, `abs` and `math.isclose` are Python's own; other objects as a
`Remote`, which equals itself only. The expected values never enter the program's process. Objects that equal
everything, changed builtins, or reading frames and heap therefore do not pass a test.
"""

import builtins
import os
import time

from . import values
from .confinement import confine
from .program import describe


PASSED = b"passed"
_SOURCE_NAME = "<tests>"


def _requested(operation: str):
    """Return a method that requests an operation of the program's process."""
    return lambda self, *operands: self._request(operation, self, *operands)


class Remote:
    """A proxy of an object in the program's process. It has no arithmetic, whose results would prove nothing."""

    __slots__ = ("_number", "_request")

    def __init__(self, number: int, request):
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_request", request)

    __setattr__ = _requested("setattr")
    __getitem__ = _requested("getitem")
    __len__ = _requested("len")
    __bool__ = _requested("bool")
    __str__ = _requested("str")
    __repr__ = _requested("repr")

    def __getattr__(self, name):
        return self._request("getattr", self, name)

    def __call__(self, *positional, **named):
        return self._request("call", self, positional, named)

    def __iter__(self):
        return iter(self._request("list", self))

    def __eq__(self, other):
        return type(other) is Remote and other._number == self._number

    def __hash__(self):
        return hash(("Remote", self._number))


def _number_of(thing) -> int:
    if type(thing) is not Remote:
        raise TypeError(f"a test passes an object of its own, a {type(thing).__name__}; only builtins can be passed")
    return thing._number


def run(job, names: list[str], source: bytes, null: int, kept: list[int]) -> None:
    """Confine this process like the program's, run the tests, write the verdict, and wait to be killed; never return.

    Args:
        names: the names in the tests that are the program's.
        null: a descriptor for `confine`.
        kept: descriptors of the verdict and of the connection to the program.
    """
    verdict, channel = confine(job, null, null, kept)
    reader = open(channel, "rb")  # noqa: SIM115

    def request(operation: str, *operands):
        line = values.encode((operation, *operands), _number_of)
        try:
            values.write(channel, line)
            answer = values.read_line(reader)
        except (EOFError, OSError):
            os._exit(0)  # the program has ended, which is reported instead
        succeeded, *result = values.decode(answer, lambda number: Remote(number, request))
        if succeeded:
            return result[0]
        name, message = result
        kind = getattr(builtins, name, None)
        # StopIteration would end loops of the tests, such as `all(map(...))`, which then pass.
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration:
            raise kind(message)
        raise RuntimeError(f"{name}: {message}")

    try:
        # The program can send other names too, such as `abs`.
        given = request("names", *names)
        namespace = {name: given[name] for name in names if name in given}
        namespace |= {"__name__": "__main__", "__builtins__": builtins}
        exec(compile(source, _SOURCE_NAME, "exec"), namespace)
        report = PASSED
    except BaseException as error:
        report = b"test failed: " + describe(error, source, _SOURCE_NAME)
    os.write(verdict, report)
    while True:  # until killed: at the end of this process, the program would end too
        time.sleep(1000.0)
