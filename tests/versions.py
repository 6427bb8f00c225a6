"""Marks for tests that need a newer transformers release, with reasons."""

import pytest
import transformers
from packaging.version import Version


def is_before(release: str) -> bool:
    return Version(transformers.__version__).release < Version(release).release


def since(release: str, reason: str) -> pytest.MarkDecorator:
    """Skip before this release of transformers; `reason` describes what older releases do."""
    return pytest.mark.skipif(is_before(release), reason=f"transformers before {release} {reason}")


# Before 5.20, transformers warns of inputs on another device than a model with offloaded weights.
MAY_WARN_OF_OFFLOADING = pytest.mark.filterwarnings(
    f"{'ignore' if is_before('5.20') else 'error'}:.* with the `input_ids` being on a device type different"
)
