"""WMT14, German to English; scored by BLEU."""

from collections.abc import Sequence
from typing import Any

from hf_diversed.tasks.base import HubSource, Record, Task, check_lengths


class Wmt(Task):
    """Column `translation`, a mapping with `de` and `en`. The first line that is not empty is the translation.

    The reward is the BLEU of the sentence; the metric of a test set is the BLEU of the corpus, which is no mean of it.
    """

    name = "wmt"
    metric = "bleu"
    source = HubSource("wmt/wmt14", "de-en")
    splits = ("train", "validation", "test")
    columns = ("translation.de", "translation.en")
    score_columns = ("translation.en",)
    max_new_tokens = 128
    stop_strings = ("\nGerman:", "\nTranslate the following German sentence")

    def prompt(self, record: Record) -> str:
        german = record["translation"]["de"]
        return f"Translate the following German sentence into English:\n\nGerman: {german}\n\nEnglish:"

    def reference(self, record: Record) -> str:
        return f" {record['translation']['en'].strip()}"

    def score(self, completion: str, record: Record) -> float:
        result = _sacrebleu().sentence_bleu(self._translation(completion), [record["translation"]["en"]])
        return _share(result.score)

    def corpus_score(self, completions: Sequence[str], records: Sequence[Record]) -> float:
        """Return the BLEU of all completions as one corpus, in [0, 1]."""
        check_lengths(completions, records)
        if not completions:
            raise ValueError("task 'wmt' needs at least one completion for a corpus score, got none.")
        references = [record["translation"]["en"] for record in records]
        return _share(_sacrebleu().corpus_bleu([self._translation(text) for text in completions], [references]).score)

    def _translation(self, completion: str) -> str:
        return next((line.strip() for line in self.trim(completion).split("\n") if line.strip()), "")


def _share(percent: float) -> float:
    return min(percent / 100, 1.0)  # a perfect match is 100.00000000000004


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError as error:
        raise ImportError("translations are scored by sacrebleu; install hf-diversed[train].") from error
    return sacrebleu
