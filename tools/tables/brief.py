"""The README's table: time and score of each method on each task of the Qwen2.5-Coder pair."""

import re
from typing import NamedTuple

from hf_diversed.evaluation.table import percent
from tools.figures import MIXTURE_HEAD, TOKEN_HEAD, figures
from tools.tables.parts import markdown


SECONDS = "seconds, batch 1"


class Task(NamedTuple):
    """A row: its label, the studies of the scores and of the seconds (None where none are comparable), the method with
    a head that was trained on the task, and whether scores are shares."""

    label: str
    scores: str
    seconds: str | None
    head: str | None
    is_share: bool = True


TASKS = (
    Task(
        "summaries (SciTLDR), greedy",
        "qwen-coder-scitldr-t0",
        None,
        f"diversed:{MIXTURE_HEAD}",
        is_share=False,
    ),
    Task(
        "summaries, temperature 0.7, top-p 0.8, top-k 20",
        "qwen-coder-scitldr-t0.7-k20-p0.8",
        None,
        f"diversed:{TOKEN_HEAD}",
        is_share=False,
    ),
    Task(
        "summaries, temperature 1",
        "qwen-coder-scitldr",
        None,
        f"diversed:{TOKEN_HEAD}",
        is_share=False,
    ),
    Task(
        "code (MBPP), greedy",
        "qwen-coder-mbpp-t0",
        "qwen-coder-speed-mbpp-t0",
        "diversed:results/real/token-head-mbpp",
    ),
    Task(
        "math (GSM8K), greedy",
        "qwen-coder-gsm8k-t0",
        "qwen-coder-speed-gsm8k-t0",
        None,
    ),
)
# Methods and their headers; "diversed" stands for the head of the task.
METHODS = {
    "target": "target alone",
    "upstream": "transformers' assisted generation",
    "lossless": "`lossless`",
    "lenience:0.3": "`lenience:0.3`",
    "diversed": "DIVERSED head",
}


def render() -> str:
    """Return the table and its setting."""
    rows = [[task.label, *(_cell(task, method) for method in METHODS)] for task in TASKS]
    sizes = dict.fromkeys(
        f"{figures(task.scores)[0].n} prompts of {re.split('[ ,]', task.label)[0]}" for task in TASKS
    )
    timed = " and ".join(
        f"{figures(task.seconds)[0].n} prompts of {task.label.partition(' ')[0]}" for task in TASKS if task.seconds
    )
    setting = (
        "Means per answer; Qwen2.5-Coder Instruct 1.5B with 0.5B, from 4-bit weights, 5 draft tokens per round. "
        f"Scores: {', '.join(sizes)}. Seconds: {timed}, batch size 1, bfloat16, two CPU threads. The heads are token "
        "heads, except in the first row, which has the better of two, a mixture head. transformers' scores were not "
        "measured; it is lossless. [Intervals, more methods](docs/results.md)."
    )
    return f"{markdown(['task', *METHODS.values()], rows)}\n\n{setting}"


def _cell(task: Task, method: str) -> str:
    """Return the lines of a cell: seconds, or else target forwards, and the score; "-" without both."""
    label = task.head if method == "diversed" else method
    studies = (task.scores, *filter(None, [task.seconds]))
    found = {each.metric: each.value for study in studies for each in figures(study) if each.method == label}
    parts = []
    if task.seconds and SECONDS in found:
        parts.append(f"{found[SECONDS]:.1f} s")
    elif not task.seconds and "mean_rounds" in found:
        parts.append(f"{found['mean_rounds']:.1f} forwards")
    if "quality" in found:
        score = found["quality"]
        parts.append(f"{percent(score)} right" if task.is_share else f"ROUGE-2 {100 * score:.1f}")
    return "<br>".join(parts) or "-"
