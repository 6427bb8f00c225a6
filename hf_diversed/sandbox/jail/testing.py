"""The tests' process, a sibling of the program's: run the tests and request values from the program.

A name that the tests use and do not define is the program's. Calling it sends copies of the arguments and returns the
result: builtins as new exact builtins, so `==`, `<`, `abs` and `math.isclose` are Python's own; other objects as a
`Remote`, which equals itself only. The expected values never enter the program's process. Objects that equal
everything, changed builtins, reading frames and heap, or one child per guess therefore do not pass a test.
"""

import builtins
import os

from . import complaint, confinement, wire
from .watching import PASSED


_SOURCE_NAME = "<tests>"


class Remote:
    """A proxy of an object in the program's process. It has no arithmetic, whose results would prove nothing."""

    __slots__ = ("_ask", "_place")

    def __init__(self, place: int, ask):
        object.__setattr__(self, "_place", place)
        object.__setattr__(self, "_ask", ask)

    def __call__(self, *positional, **named):
        return self._ask("call", self, positional, named)

    def __getattr__(self, name):
        return self._ask("get", self, name)

    def __setattr__(self, name, value):
        self._ask("set", self, name, value)

    def __getitem__(self, key):
        return self._ask("item", self, key)

    def __iter__(self):
        return iter(self._ask("list", self))

    def __len__(self):
        return self._ask("len", self)

    def __bool__(self):
        return self._ask("bool", self)

    def __str__(self):
        return self._ask("str", self)

    def __repr__(self):
        return self._ask("repr", self)

    def __eq__(self, other):
        return type(other) is Remote and other._place == self._place

    def __hash__(self):
        return hash(("Remote", self._place))


class _Connection:
    """The connection to the program: one answer per request."""

    def __init__(self, channel: int):
        self.channel = channel

    def ask(self, operation: str, *operands):
        wire.send(self.channel, wire.encode((operation, *operands), _place_of))
        succeeded, *answer = wire.decode(wire.receive(self.channel), lambda place: Remote(place, self.ask))
        if succeeded:
            return answer[0]
        name, message = answer
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise kind(message)
        raise RuntimeError(f"{name}: {message}")


def _place_of(thing) -> int:
    if type(thing) is not Remote:
        raise TypeError(f"a test passes an object of its own, a {type(thing).__name__}; only builtins can be passed")
    return thing._place


def run(plan, privileged: bool, request: bytes, ends: dict) -> None:
    """Confine this process like the program's, run the tests, write the verdict, and exit; never return.

    Args:
        request: the program's names, separated by spaces, a line break, the source of the tests.
        ends: descriptors by name: "null", "setup", "verdict", "channel".
    """
    kept = [ends["verdict"], ends["channel"]]
    verdict, channel = confinement.confine(plan, privileged, ends["null"], ends["null"], ends["setup"], kept)
    names, _, source = request.partition(b"\n")
    try:
        ask = _Connection(channel).ask
        namespace = {"__name__": "__main__", "__builtins__": builtins, **ask("names", *names.decode().split())}
        exec(compile(source, _SOURCE_NAME, "exec"), namespace)
        report = PASSED
    except (EOFError, BrokenPipeError, ConnectionResetError):
        report = b""  # the program has ended, which is reported instead
    except BaseException as error:
        report = b"test failed: " + complaint.describe(error, source, _SOURCE_NAME)
    os.write(verdict, report)
    os._exit(0)
