"""Marks for tests that need a newer transformers release, with reasons."""

import pytest
import transformers
from packaging.version import Version


def is_before(release: str) -> bool:
    return Version(transformers.__version__).release < Version(release).release


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """Skip before this release of transformers; `reason` describes what older releases do."""
    return pytest.mark.skipif(is_before(release), reason=f"transformers before {release} {reason}")


def warns_before(release: str, message: str) -> pytest.MarkDecorator:
    """Ignore warnings that older releases of transformers emit. `message` is a regular expression."""
    action = "ignore" if is_before(release) else "error"
    return pytest.mark.filterwarnings(f"{action}:{message}")
