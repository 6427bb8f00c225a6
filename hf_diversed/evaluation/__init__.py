"""Quality, acceptance and speed of methods on a task's prompts, with bounds clustered by prompt."""

from hf_diversed.evaluation.evaluate import EvaluationSettings, Results, evaluate, read_results
from hf_diversed.evaluation.statistics import Bootstrap, summarize
from hf_diversed.evaluation.table import markdown_table
from hf_diversed.zoo.loader import Pair


__all__ = [
    "Bootstrap",
    "EvaluationSettings",
    "Pair",
    "Results",
    "evaluate",
    "markdown_table",
    "read_results",
    "summarize",
]
