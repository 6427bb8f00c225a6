"""Make the README's links absolute before a release, because the package index shows the README without other files.

python -m tools.absolute_links REPOSITORY REVISION     as in https://github.com/owner/name v1.2.3
"""

import re
import sys
from pathlib import Path


README = Path(__file__).parent.parent / "README.md"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")


def absolute(text: str, repository: str, revision: str) -> str:
    """Return the text with relative links and images replaced by addresses in a revision of the repository."""

    def link(match: re.Match[str]) -> str:
        label, address = match.groups()
        if "://" in address:
            return match[0]
        kind = "raw" if label.startswith("!") else "blob"
        return f"{label}({repository.rstrip('/')}/{kind}/{revision}/{address})"

    return LINK.sub(link, text)


def main() -> None:
    README.write_text(absolute(README.read_text(), *sys.argv[1:]))


if __name__ == "__main__":
    main()
