"""Fixtures of the tests of engines."""

import pytest

import hf_diversed
from tests.engines.modes import shallow


@pytest.fixture(scope="module")
def pair(pair):
    """One layer each, which halves the time of tracing."""
    return shallow(pair)


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    hf_diversed.clear_compiled()
