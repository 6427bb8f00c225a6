"""Encoding of values between a program and its tests: builtins are copied, other objects are numbered.

Pickle and marshal are not safe: a hostile sender can run code in the reader, or crash it. An instance of a subclass
(Counter, namedtuple, IntEnum) is sent as its builtin base. Other objects stay in the program's process; their number,
called place, is sent.
"""

import os


MOST_BYTES = 16 * 2**20

# One element is `tag size : body`; an atom's size counts bytes, a container's counts the elements that follow.
# A bool is also an int, so bool comes first.
_ATOMS: tuple = (
    (type(None), b"N", lambda value: b""),
    (bool, b"B", lambda value: b"1" if value else b""),
    (int, b"I", lambda value: int.__format__(value, "x").encode()),
    (float, b"F", lambda value: float.hex(value).encode()),
    (complex, b"C", lambda value: f"{value.real.hex()} {value.imag.hex()}".encode()),
    (str, b"S", lambda value: str.encode(value, "utf-8", "surrogatepass")),
    (bytes, b"Y", bytes),
    (bytearray, b"A", bytes),
)
_CONTAINERS: tuple = (
    (tuple, b"t", tuple.__iter__),
    (list, b"l", list.__iter__),
    (set, b"s", set.__iter__),
    (frozenset, b"z", frozenset.__iter__),
    (dict, b"d", lambda value: (half for item in dict.items(value) for half in item)),
    (range, b"r", lambda value: (value.start, value.stop, value.step)),
)
_PLACE = b"O"

_READ_ATOM: dict = {
    b"N": lambda body: None,
    b"B": bool,
    b"I": lambda body: int(body, 16),
    b"F": lambda body: float.fromhex(body.decode()),
    b"C": lambda body: complex(*map(float.fromhex, body.decode().split())),
    b"S": lambda body: body.decode("utf-8", "surrogatepass"),
    b"Y": bytes,
    b"A": bytearray,
}
_READ_CONTAINER: dict = {
    b"t": tuple,
    b"l": list,
    b"s": set,
    b"z": frozenset,
    b"d": lambda items: dict(zip(items[::2], items[1::2])),
    b"r": lambda items: range(*items),
}


def encode(value, place) -> bytes:
    """Encode a value. `place(thing)` returns the number of an object that is not a builtin, or raises."""
    parts: list[bytes] = []
    _put(value, parts, place)
    return b"".join(parts)


def decode(data: bytes, thing):
    """Decode a value; `thing(place)` returns the object for a number. Raises ValueError and others on invalid data."""
    return _Reader(data, thing).value()


def send(channel: int, data: bytes) -> None:
    if len(data) > MOST_BYTES:
        raise ValueError(f"a value of {len(data)} bytes is too large, at most {MOST_BYTES} can be sent")
    rest = memoryview(len(data).to_bytes(4, "big") + data)
    while rest:
        rest = rest[os.write(channel, rest) :]


def receive(channel: int) -> bytes:
    """Receive one message. Raises EOFError if the other side has ended, ValueError if the message is too large."""
    size = int.from_bytes(_take(channel, 4), "big")
    if size > MOST_BYTES:
        raise ValueError(f"{size} bytes announced, {MOST_BYTES} allowed")
    return _take(channel, size)


def _take(channel: int, size: int) -> bytes:
    chunks = []
    while size:
        chunk = os.read(channel, min(size, 2**20))
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _put(value, parts: list[bytes], place) -> None:
    for kind, tag, write in _ATOMS:
        if isinstance(value, kind):
            body = write(value)
            parts.append(b"%c%d:%b" % (tag, len(body), body))
            return
    for kind, tag, elements in _CONTAINERS:
        if isinstance(value, kind):
            items = list(elements(value))
            parts.append(b"%c%d:" % (tag, len(items)))
            for item in items:
                _put(item, parts, place)
            return
    body = b"%d" % place(value)
    parts.append(b"%c%d:%b" % (_PLACE, len(body), body))


class _Reader:
    def __init__(self, data: bytes, thing):
        self.data, self.thing, self.at = data, thing, 0

    def value(self):
        tag, end = self.data[self.at : self.at + 1], self.data.index(b":", self.at)
        size = int(self.data[self.at + 1 : end])
        self.at = end + 1
        if tag in _READ_CONTAINER:
            return _READ_CONTAINER[tag]([self.value() for _ in range(size)])
        body = self.data[self.at : self.at + size]
        if len(body) != size:
            raise ValueError("a value is truncated")
        self.at += size
        return self.thing(int(body)) if tag == _PLACE else _READ_ATOM[tag](body)
