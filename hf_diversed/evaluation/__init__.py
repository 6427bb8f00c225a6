"""Quality, acceptance and cost of methods on a task's prompts, with bounds clustered by prompt."""

from hf_diversed.evaluation.evaluate import evaluate, report
from hf_diversed.evaluation.intervals import Bootstrap
from hf_diversed.evaluation.markdown import markdown_table
from hf_diversed.evaluation.results import Results, read_results
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.evaluation.summary import summarize
from hf_diversed.evaluation.sweep import sweep


__all__ = [
    "Bootstrap",
    "EvaluationSettings",
    "Results",
    "evaluate",
    "markdown_table",
    "read_results",
    "report",
    "summarize",
    "sweep",
]
