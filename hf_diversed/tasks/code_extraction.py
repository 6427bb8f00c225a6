"""Extraction of the program from a completion."""

import re
from collections.abc import Sequence


_FENCE = re.compile(r"^[ \t]*```[^\n]*\n?", re.MULTILINE)
_STARTS_AS_CODE = re.compile(r"\t| {2,}|@|(?:async def|def|class|import)\s|from\s+[\w.]+\s+import\b|\w+\s*=[^=]")
_MAIN = "if __name__"
STOP_POINTS = ("Question:", "Task:", "Problem:", "Explanation:", "Write a Python", _MAIN, "print(", "assert ")


def extract_code(completion: str, stop_points: Sequence[str] = STOP_POINTS) -> str:
    """Return the code of a completion: the first fenced block, or everything before a line that starts with a stop
    point or a fence.

    A completion whose first line is code is treated as not fenced: a later fence closes a block that the prompt
    opened, or follows the answer. A fenced block loses only its `if __name__` part, since the program runs as the main
    module. Line ends become `\\n`.
    """
    text = completion.replace("\r\n", "\n").replace("\r", "\n")
    fence = _FENCE.search(text)
    if fence is None or _STARTS_AS_CODE.match(text.lstrip("\n")):
        return _cut(text, ["```", *stop_points])
    closing = _FENCE.search(text, fence.end())
    return _cut(text[fence.end() : closing.start() if closing else None], [_MAIN])


def _cut(text: str, stop_points: Sequence[str]) -> str:
    stop = re.search("^(?:" + "|".join(map(re.escape, stop_points)) + ")", text, re.MULTILINE)
    return text[: stop.start()] if stop else text
