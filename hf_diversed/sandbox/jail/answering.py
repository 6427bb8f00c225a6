"""The program's side of its tests: execute the operations that the tests request, and return the results.

This runs in the program's process, which can replace every line. That gains nothing, because the expected values are
in another process.
"""

import os

from . import wire


_OPERATIONS: dict = {
    "call": lambda function, positional, named: function(*positional, **named),
    "get": getattr,
    "set": setattr,
    "item": lambda thing, key: thing[key],
    "list": list,
    "len": len,
    "bool": bool,
    "str": str,
    "repr": repr,
}


def answer(channel: int, namespace: dict, flush) -> None:
    """Answer requests until the launcher ends the program. A child process that gets here exits."""
    things: list = []  # by place; objects that the tests refer to stay alive
    places: dict[int, int] = {}
    which, this = os.getpid, os.getpid()

    def place(thing) -> int:
        if id(thing) not in places:
            places[id(thing)] = len(things)
            things.append(thing)
        return places[id(thing)]

    while True:
        operation, *operands = wire.decode(wire.receive(channel), things.__getitem__)
        try:
            if operation == "names":
                result = {name: namespace[name] for name in operands if name in namespace}
            else:
                result = _OPERATIONS[operation](*operands)
            answered = wire.encode((True, result), place)
        except BaseException as error:
            answered = wire.encode((False, type(error).__name__, _message(error)), place)
        if which() != this:
            os._exit(0)
        flush()
        wire.send(channel, answered)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return ""
