"""Quality, acceptance and cost of methods on a task's prompts, with bounds clustered by prompt."""

from hf_diversed.evaluation.evaluate import evaluate, report
from hf_diversed.evaluation.intervals import Bootstrap, Estimate
from hf_diversed.evaluation.markdown import markdown_table
from hf_diversed.evaluation.results import Results, read_results
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.evaluation.summary import summarize
from hf_diversed.evaluation.sweep import merge_reports, sweep
from hf_diversed.harness.methods import Method, build_methods


__all__ = [
    "Bootstrap",
    "Estimate",
    "EvaluationSettings",
    "Method",
    "Results",
    "build_methods",
    "evaluate",
    "markdown_table",
    "merge_reports",
    "read_results",
    "report",
    "summarize",
    "sweep",
]
