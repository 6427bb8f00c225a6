"""ROUGE-2, the score of summaries."""

from functools import lru_cache
from typing import Any


def rouge2(completion: str, reference: str) -> float:
    """Return the F measure of ROUGE-2 in [0, 1] with stemming, as usual for summarization."""
    return float(_scorer().score(reference, completion)["rouge2"].fmeasure)


@lru_cache(maxsize=1)
def _scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ImportError("ROUGE-2 requires rouge-score; install hf-diversed[train].") from error
    return RougeScorer(["rouge2"], use_stemmer=True)
