"""Summaries, scored by ROUGE-2: CNN/DailyMail, XSum and SciTLDR (arXiv 2004.15011)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hf_diversed.tasks.base import HubSource, Record, Task


def rouge2(completion: str, *references: str) -> float:
    """Return ROUGE-2 with stemming, an F measure in [0, 1]: the highest over the references."""
    return float(max(_scorer().score(reference, completion)["rouge2"].fmeasure for reference in references))


@lru_cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge2"], use_stemmer=True)


class CnnDailyMail(Task):
    """News articles and their highlights. Columns `article` and `highlights`; the score is ROUGE-2."""

    name = "cnndm"
    metric = "rouge2"
    scorer_modules = ("rouge_score",)
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


_WORDS_SCORED = 32


class XSum(Task):
    """BBC articles and their one-sentence summaries. Columns `document` and `summary`; the score is ROUGE-2 of the
    first 32 words, as in the paper's code, so that long texts do not lose precision."""

    name = "xsum"
    metric = "rouge2"
    scorer_modules = ("rouge_score",)
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


class SciTldr(Task):
    """Abstracts of papers and their one-sentence summaries. Columns `abstract`, a text, and `tldr`, a text or a list
    of texts; the score is the highest ROUGE-2 over the summaries, as in the dataset's paper."""

    name = "scitldr"
    metric = "rouge2"
    scorer_modules = ("rouge_score",)
    source = HubSource("allenai/scitldr", "Abstract")
    splits = ("train", "validation", "test")
    columns = ("abstract", "tldr")
    score_columns = ("tldr",)
    max_new_tokens = 64
    stop_strings = ("\nAbstract:", "\nSummarize the following abstract in one sentence:")

    def prompt(self, record: Record) -> str:
        return (
            f"Summarize the following abstract in one sentence:\n\nAbstract: {record['abstract'].strip()}\n\nSummary:"
        )

    def reference(self, record: Record) -> str:
        """Return the first summary."""
        return f" {summaries(record)[0].strip()}"

    def score(self, completion: str, record: Record) -> float:
        return rouge2(self.trim(completion), *summaries(record))


def summaries(record: Record) -> Sequence[str]:
    """Return the summaries of a record of SciTLDR."""
    found = record["tldr"]
    return [found] if isinstance(found, str) else found
