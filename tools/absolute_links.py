"""Make the README's links absolute before a release, because the package index has no files beside it.

python -m tools.absolute_links REPOSITORY REVISION     as in https://github.com/owner/name v1.2.3
"""

import re
import sys
from pathlib import Path


README = Path(__file__).parent.parent / "README.md"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")


def absolute(text: str, repository: str, revision: str) -> str:
    """Return the text with every relative link and image at that revision of the repository."""

    def link(found: re.Match[str]) -> str:
        words, address = found.groups()
        if "://" in address:
            return found[0]
        kind = "raw" if words.startswith("!") else "blob"
        return f"{words}({repository.rstrip('/')}/{kind}/{revision}/{address})"

    return LINK.sub(link, text)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    README.write_text(absolute(README.read_text(), *sys.argv[1:]))


if __name__ == "__main__":
    main()
