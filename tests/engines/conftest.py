"""Fixtures of the tests of engines."""

import pytest

import hf_diversed


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    hf_diversed.clear_compiled()
