"""News items of the embedded pair."""

from hf_diversed.tasks.base import Record
from hf_diversed.tasks.embedded import EmbeddedTask
from hf_diversed.tasks.rouge import rouge2


class Summary(EmbeddedTask):
    """The answer is a sentence; the score is ROUGE-2."""

    name = "summary"
    metric = "rouge2"
    max_new_tokens = 64
    stop_strings = ("\nArticle:",)

    def score(self, completion: str, record: Record) -> float:
        return rouge2(self.trim(completion), record["answer"])
