"""What tests anywhere may need."""

import logging

import pytest


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """pytest's own, which listens at the root; transformers' loggers, and ours below them, stop short of it."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return caplog
