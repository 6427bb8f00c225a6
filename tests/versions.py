"""What a test cannot ask of an older transformers: marks that name the release which can, and say why."""

import pytest
import transformers
from packaging.version import Version


def is_before(release: str) -> bool:
    return Version(transformers.__version__).release < Version(release).release


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """Skip before this release of transformers; the reason says what older ones do."""
    return pytest.mark.skipif(is_before(release), reason=f"transformers before {release} {reason}")


def warns_before(release: str, message: str) -> pytest.MarkDecorator:
    """Let pass what older releases of transformers warn of by themselves. `message` is a regular expression."""
    action = "ignore" if is_before(release) else "error"
    return pytest.mark.filterwarnings(f"{action}:{message}")
