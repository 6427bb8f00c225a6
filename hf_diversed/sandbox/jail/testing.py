"""The tests' own process, a sibling of the program's: runs them and asks the program for what only it can know.

A name that the tests use and do not define is the program's. Calling it sends the arguments over, as copies, and
brings the result back: builtins as fresh exact builtins, so `==`, `<`, `abs` and `math.isclose` are Python's own;
anything else as a `Remote`, which equals itself only. The values that the tests expect never enter the program's
process. So neither an object that equals everything, nor changed builtins, nor a look at frames and heap, nor a child
per guess passes a test.
"""

import builtins
import os

from . import complaint, confinement, wire
from .watching import PASSED


_SOURCE_NAME = "<tests>"


class Remote:
    """Stands for something in the program's process. No arithmetic: an answer to `x - 1` would prove nothing."""

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


class _Line:
    """The line to the program: one request, one answer."""

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
        raise TypeError(f"a test hands over an object of its own, a {type(thing).__name__}; only builtins can cross")
    return thing._place


def run(plan, privileged: bool, request: bytes, ends: dict) -> None:
    """Confine this process as the program's, run the tests, write the verdict, and leave: it never returns.

    Args:
        request: the program's names, separated by spaces, a line end, the source of the tests.
        ends: descriptors by name: "null", "setup", "verdict", "channel".
    """
    kept = [ends["verdict"], ends["channel"]]
    verdict, channel = confinement.confine(plan, privileged, ends["null"], ends["null"], ends["setup"], kept)
    names, _, source = request.partition(b"\n")
    try:
        ask = _Line(channel).ask
        namespace = {"__name__": "__main__", "__builtins__": builtins, **ask("names", *names.decode().split())}
        exec(compile(source, _SOURCE_NAME, "exec"), namespace)
        said = PASSED
    except (EOFError, BrokenPipeError, ConnectionResetError):
        said = b""  # the program is gone, and how it ended says more
    except BaseException as error:
        said = b"test failed: " + complaint.describe(error, source, _SOURCE_NAME)
    os.write(verdict, said)
    os._exit(0)
