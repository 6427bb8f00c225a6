"""CNN/DailyMail: news articles and their highlights."""

from hf_diversed.tasks.base import HubSource, Record, Task
from hf_diversed.tasks.rouge import rouge2


class CnnDailyMail(Task):
    """Columns `article` and `highlights`; the score is ROUGE-2."""

    name = "cnndm"
    metric = "rouge2"
    source = HubSource("abisee/cnn_dailymail", "3.0.0")
    splits = ("train", "validation", "test")
    columns = ("article", "highlights")
    score_columns = ("highlights",)
    max_new_tokens = 128
    stop_strings = ("\nArticle:", "\nSummarize the following article:")

    def prompt(self, record: Record) -> str:
        return f"Summarize the following article:\n\nArticle: {record['article']}\n\nSummary:"

    def reference(self, record: Record) -> str:
        return f" {record['highlights'].strip()}"

    def score(self, completion: str, record: Record) -> float:
        return rouge2(self.trim(completion), record["highlights"])
