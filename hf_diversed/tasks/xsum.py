"""XSum: BBC articles and their one-sentence summaries."""

from hf_diversed.tasks.base import HubSource, Record, Task
from hf_diversed.tasks.rouge import rouge2


_WORDS_SCORED = 32


class XSum(Task):
    """Columns `document` and `summary`; the score is ROUGE-2 of the first 32 words, as in the paper's code: summaries
    are one sentence, and longer texts would lose precision because of their length."""

    name = "xsum"
    metric = "rouge2"
    source = HubSource("EdinburghNLP/xsum")
    splits = ("train", "validation", "test")
    columns = ("document", "summary")
    score_columns = ("summary",)
    max_new_tokens = 64
    stop_strings = ("\nDocument:", "\nWrite a concise summary of the following document:")

    def prompt(self, record: Record) -> str:
        return f"Write a concise summary of the following document:\n\nDocument: {record['document']}\n\nSummary:"

    def reference(self, record: Record) -> str:
        return f" {record['summary'].strip()}"

    def score(self, completion: str, record: Record) -> float:
        words = self.trim(completion).split()
        return rouge2(" ".join(words[:_WORDS_SCORED]), record["summary"])
