"""What every task family of the corpus provides, and the split into training and held-out examples."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass

from embedded.corpus.wording import Style


HELD_OUT_SHARE = 1 / 16


@dataclass(frozen=True)
class Example:
    """One prompt with a reference completion.

    Args:
        prompt: what a model is given.
        completion: a right continuation, leading space included, EOS not included.
        answer: what a task's score compares with: a number, a sentence, or lines of tests.
        key: what the example says, whatever its wording: the split hashes it, so a paraphrase never crosses over.
    """

    prompt: str
    completion: str
    answer: str
    key: str


# A kind of task is the function that draws one example of it in a given style, from either side of the split.
Family = Callable[[random.Random, Style], Example]


def is_held_out(key: str) -> bool:
    """Tell on which side of the split a key falls; the same in every process and version."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64
