"""Examples of the corpus, and their split into training and held-out examples."""

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
        prompt: input of a model.
        completion: a correct continuation with leading space, without EOS.
        answer: reference of the task's score: a number, a sentence, or lines of tests.
        key: content without wording; its hash decides the split, so paraphrases are on the same side.
    """

    prompt: str
    completion: str
    answer: str
    key: str


# Draws one example of a family in a given style, from either side of the split.
Family = Callable[[random.Random, Style], Example]


def is_held_out(key: str) -> bool:
    """Return whether a key is held out; the same in every process and version."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64
