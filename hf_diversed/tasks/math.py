"""Word problems of the embedded pair."""

import re

from hf_diversed.tasks.base import Record
from hf_diversed.tasks.embedded import EmbeddedTask


_ANSWER = re.compile(r"The answer is (\d+)\.\s*$")


class Math(EmbeddedTask):
    """The answer is a number, which the last sentence of a completion must contain."""

    name = "math"
    metric = "accuracy"
    max_new_tokens = 128
    stop_strings = ("\nQuestion:",)

    def score(self, completion: str, record: Record) -> float:
        """Return 1.0 if the completion ends in `The answer is N.` with the right number, else 0.0."""
        match = _ANSWER.search(self.trim(completion))
        return float(match is not None and match[1] == record["answer"])
