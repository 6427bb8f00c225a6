"""SciTLDR: abstracts of papers and their one-sentence summaries (arXiv 2004.15011)."""

from hf_diversed.tasks.base import HubSource, Record, Task, lookup
from hf_diversed.tasks.rouge import rouge2


class SciTldr(Task):
    """Columns `abstract` and `tldr`, or `source` and `target` as on the Hub; the score is the highest ROUGE-2
    over the summaries, as in the dataset's paper."""

    name = "scitldr"
    metric = "rouge2"
    source = HubSource("allenai/scitldr", "Abstract")
    splits = ("train", "validation", "test")
    columns = ("abstract|source", "tldr|target")
    score_columns = ("tldr|target",)
    max_new_tokens = 64
    stop_strings = ("\nAbstract:", "\nSummarize the following abstract in one sentence:")

    def prompt(self, record: Record) -> str:
        abstract = lookup(record, "abstract|source")
        text = abstract if isinstance(abstract, str) else " ".join(abstract)
        return f"Summarize the following abstract in one sentence:\n\nAbstract: {text.strip()}\n\nSummary:"

    def reference(self, record: Record) -> str:
        """Return the first summary."""
        return f" {_summaries(record)[0].strip()}"

    def score(self, completion: str, record: Record) -> float:
        text = self.trim(completion)
        return max(rouge2(text, summary) for summary in _summaries(record))


def _summaries(record: Record) -> list[str]:
    found = lookup(record, "tldr|target")
    summaries = [found] if isinstance(found, str) else list(found)
    if not summaries:
        raise ValueError("`tldr` of task 'scitldr' must hold at least one summary, got none; drop the record.")
    return summaries
