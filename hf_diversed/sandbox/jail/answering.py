"""The program's side of its tests: calls what the tests ask for and hands back what came out.

All of it runs in the program's own process, which may replace every line. It gains nothing: what the tests compare
with is in another process, and an answer is worth what it says.
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
    """Answer one request after the other, until the launcher ends the program. A child that gets here leaves."""
    things: list = []  # by place; what the tests were told of stays alive
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
