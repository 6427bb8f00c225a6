"""Rewriting of a given text, for which prompt lookup finds draft tokens."""

import random

from hf_diversed.tasks.base import HubSource, Record, Task, lookup
from hf_diversed.tasks.rouge import rouge2


SHARE = 0.05  # of the words
_INSTRUCTION = "Correct the spelling of the following text and change nothing else."


class Rewrite(Task):
    """Column `text`, or the abstracts of SciTLDR. A letter is doubled in 5% of the words of four or more letters, and
    the model must correct the text. The score is ROUGE-2 against the original text."""

    name = "rewrite"
    metric = "rouge2"
    scorer_modules = ("rouge_score",)
    source = HubSource("allenai/scitldr", "Abstract")
    splits = ("train", "validation", "test")
    columns = ("text|abstract|source",)
    text_columns = list_columns = columns
    score_columns = ("text|abstract|source",)
    max_new_tokens = 256
    stop_strings = (f"\n{_INSTRUCTION}",)

    def prompt(self, record: Record) -> str:
        return f"{_INSTRUCTION}\n\nText: {misspelled(_text(record))}\n\nCorrected:"

    def chat_question(self, record: Record) -> str:
        return f"{_INSTRUCTION} Answer with the text alone.\n\n{misspelled(_text(record))}"

    def reference(self, record: Record) -> str:
        return f" {_text(record)}"

    def score(self, completion: str, record: Record) -> float:
        return rouge2(self.trim(completion), _text(record))


def misspelled(text: str, share: float = SHARE) -> str:
    """Return the text with a letter doubled in about `share` of its longer words, deterministically."""
    rng = random.Random(text)
    words = text.split(" ")
    for index, word in enumerate(words):
        if len(word) > 3 and word.isalpha() and rng.random() < share:
            place = rng.randrange(1, len(word))
            words[index] = word[:place] + word[place - 1] + word[place:]
    return " ".join(words)


def _text(record: Record) -> str:
    text = lookup(record, "text|abstract|source")
    return " ".join((text if isinstance(text, str) else " ".join(text)).split())
