"""Values between a program and its tests, as lines of JSON: builtins are copied, other objects are numbered.

JSON cannot run code in the reader, unlike pickle and marshal. An instance of a subclass (Counter, namedtuple, IntEnum)
is sent as its builtin base. Other objects stay in the program's process; their number is sent.
"""

import json
import os


MOST_BYTES = 32 * 2**20

# Bound here: the program can replace the functions of the module.
_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_load = json.JSONDecoder().decode

# Name: type, its parts (a text, or values), and how the parts become a value. None, booleans, strings and integers up
# to 2**53 are JSON's.
_KINDS: dict = {
    "int": (int, lambda value: int.__format__(value, "x"), lambda text: int(text, 16)),
    "float": (float, float.hex, float.fromhex),
    "complex": (complex, lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "tuple": (tuple, tuple.__iter__, tuple),
    "list": (list, list.__iter__, list),
    "set": (set, set.__iter__, set),
    "frozenset": (frozenset, frozenset.__iter__, frozenset),
    "dict": (dict, dict.items, dict),
    "range": (range, lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
}


def encode(value, number_of) -> bytes:
    """Return a value as a line. `number_of(thing)` returns the number of an object that is not a builtin, or raises.
    Raises ValueError if the line is longer than `MOST_BYTES`."""
    line = _dump(_to_json(value, number_of)).encode("utf-8", "surrogatepass") + b"\n"
    if len(line) > MOST_BYTES:
        raise ValueError(f"a value of {len(line)} bytes is too large, at most {MOST_BYTES} can be sent")
    return line


def decode(line: bytes, thing):
    """Return the value of a line; `thing(number)` returns an object. Raises ValueError and others on invalid data."""
    return _from_json(_load(line.decode("utf-8", "surrogatepass")), thing)


def read_line(reader) -> bytes:
    """Read one line. Raises EOFError if the other side has ended, ValueError if the line is too long."""
    line = reader.readline(MOST_BYTES)
    if not line:
        raise EOFError
    if not line.endswith(b"\n"):
        raise ValueError(f"a line of at most {MOST_BYTES} bytes is expected, got {len(line)} bytes without its end")
    return line


def write(descriptor: int, line: bytes) -> None:
    """Write a line to a blocking descriptor."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _to_json(value, number_of):
    if value is None or isinstance(value, (bool, str)) or (type(value) is int and -(2**53) <= value <= 2**53):
        return value
    for name, (kind, parts_of, _) in _KINDS.items():
        if isinstance(value, kind):
            parts = parts_of(value)
            return [name, parts if isinstance(parts, str) else [_to_json(part, number_of) for part in parts]]
    return ["object", number_of(value)]


def _from_json(data, thing):
    if data is None or isinstance(data, (bool, str, int)):
        return data
    name, parts = data
    if name == "object":
        return thing(parts)
    if isinstance(parts, list):
        parts = [_from_json(part, thing) for part in parts]
    return _KINDS[name][2](parts)
