"""The program inside a completion."""

import re
from collections.abc import Sequence


_FENCE = re.compile(r"^[ \t]*```[^\n]*\n?", re.MULTILINE)
_STARTS_AS_CODE = re.compile(r"\t| {2,}|@|(?:async def|def|class|import)\s|from\s+[\w.]+\s+import\b|\w+\s*=[^=]")
_MAIN = "if __name__"
STOP_POINTS = ("Question:", "Task:", "Problem:", "Explanation:", "Write a Python", _MAIN, "print(", "assert ")


def extract_code(completion: str, stop_points: Sequence[str] = STOP_POINTS) -> str:
    """Return the code of a completion: the first fenced block, else everything up to a line that begins with a stop
    point or a fence.

    A completion whose first line is code counts as not fenced: a fence further down closes a block that the prompt
    had opened, or belongs to a model that runs on. A fenced block loses only its `if __name__` part, since our
    program is run as the main one. Line ends become `\\n`.
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
