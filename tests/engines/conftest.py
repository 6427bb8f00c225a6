"""The model pair of the engines' tests."""

import pytest

import hf_diversed
from tests.tiny import tiny_draft, tiny_model


@pytest.fixture(scope="module")
def pair():
    target = tiny_model("llama")
    return target, tiny_draft(target)


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    hf_diversed.clear_compiled()
