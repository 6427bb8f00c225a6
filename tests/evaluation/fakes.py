"""A pair of tiny random models with a tokenizer of one character per id, and a task over it."""

from dataclasses import dataclass, field

from hf_diversed.zoo.loader import Pair
from tests import tiny
from tests.training.runs import CHARACTERS, tokenizer


def tiny_pair() -> Pair:
    target = tiny.tiny_model()
    draft = tiny.tiny_draft(target)
    # More than one, and letters too: at random, the end of a text comes late.
    target.generation_config.eos_token_id = [tiny.EOS, 10, 25, 40, 55]
    return Pair(target, draft, tokenizer())


class Interrupted(Exception):
    """Represents a killed process."""


@dataclass
class LetterTask:
    """Scores the share of lower-case letters. `calls_left` counts down to an interruption."""

    stop_strings: list[str] = field(default_factory=list)
    max_new_tokens: int = 6
    calls_left: int = 10**6
    num_calls: int = 0
    name: str = "letters"
    metric: str = "share of lower case"

    def prompt(self, record: dict) -> str:
        return record["text"]

    def score_batch(self, completions: list[str], records: list[dict]) -> list[float]:
        if self.num_calls >= self.calls_left:
            raise Interrupted
        self.num_calls += 1
        return [sum(char.islower() for char in text) / max(len(text), 1) for text in completions]


def examples(count: int) -> list[dict]:
    return [{"text": CHARACTERS[3 * i : 3 * i + 3 + i % 4] + CHARACTERS[i]} for i in range(count)]
