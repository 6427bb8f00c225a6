"""Fixture: a tiny pair with a tokenizer of characters."""

import pytest

from hf_diversed.zoo.loader import Pair
from tests.evaluation.fakes import tiny_pair


@pytest.fixture(scope="module")
def pair() -> Pair:
    return tiny_pair()
