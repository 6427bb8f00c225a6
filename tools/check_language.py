"""Report unclear phrases: `python -m tools.check_language`. The list is short and does not replace a review."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


ROOT = Path(__file__).parent.parent
PHRASES = {
    r"(?<!three )laws?": "distribution",
    r"(?:is|are|was|were) told": "receives",
    r"(?:tells|hears|says)": "returns, receives or reports",
    r"who(?:so)?ever|(?:no|some|any)body": "users, callers, or no subject at all",
    r"by the clock": "measured time",
    r"(?:model|pair|rule)s? of others": "a published model",
    r"hangs? on": "depends on",
    r"(?-i:(?:is|are) none)": "there is no",
    r"what is more|in short": "nothing",
}
EXCEPT = ("embedded/corpus/summary.py", "tools/check_language.py")  # the phrases are part of their data
PATTERNS = ("*.ipynb", "*.md", "*.py")


def problems(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, phrase and suggestion of every banned phrase."""
    for phrase, suggestion in PHRASES.items():
        for match in re.finditer(rf"\b(?:{phrase})\b", text, re.I):
            yield text.count("\n", 0, match.start()) + 1, match.group(), suggestion


def files() -> list[Path]:
    """Return the tracked files to check."""
    names = subprocess.run(["git", "ls-files", *PATTERNS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.splitlines() if name not in EXCEPT]


def main() -> int:
    found = [(path, *problem) for path in files() for problem in problems(path.read_text())]
    for path, line, phrase, suggestion in found:
        print(f"{path.relative_to(ROOT)}:{line}: {phrase!r}: write {suggestion}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
