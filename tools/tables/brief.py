"""The README's table: time and score of each method on each task of the Qwen2.5-Coder pair."""

from typing import NamedTuple

from hf_diversed.evaluation.table import percent
from tools.figures import PUBLISHED_HEAD, figures
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
        "summaries, greedy (SciTLDR, ROUGE-2)",
        "qwen-coder-scitldr-t0",
        None,
        "diversed:results/real/mixture-head-scitldr",
        is_share=False,
    ),
    Task(
        "summaries, temperature 0.7, top-p 0.8, top-k 20",
        "qwen-coder-scitldr-t0.7-k20-p0.8",
        None,
        f"diversed:{PUBLISHED_HEAD}",
        is_share=False,
    ),
    Task(
        "summaries, temperature 1",
        "qwen-coder-scitldr",
        None,
        f"diversed:{PUBLISHED_HEAD}",
        is_share=False,
    ),
    Task(
        "code, greedy (MBPP, right answers)",
        "qwen-coder-mbpp-t0",
        "qwen-coder-speed-mbpp-t0",
        "diversed:results/real/token-head-mbpp",
    ),
    Task(
        "math, greedy (GSM8K, right answers)",
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
    sizes = dict.fromkeys(f"{figures(task.scores)[0].n} prompts of {task.label.partition(',')[0]}" for task in TASKS)
    timed = " and ".join(str(figures(task.seconds)[0].n) for task in TASKS if task.seconds)
    setting = (
        f"Qwen2.5-Coder 1.5B with 0.5B, 5 draft tokens per round. Scores: {', '.join(sizes)}. Seconds per answer "
        f"({timed} prompts, batch size 1, bfloat16, two CPU threads); for summaries, target forwards. The heads are "
        "token heads, except for greedy summaries: there, the better of two heads, which reads hidden states. "
        "transformers' scores were not measured; it is lossless. [Intervals, more methods](docs/results.md)."
    )
    return f"{markdown(['task', *METHODS.values()], rows)}\n\n{setting}"


def _cell(task: Task, method: str) -> str:
    """Return "5.4 s, 50.4%", or the part that was measured; "9.9 forwards, 10.5" for tasks without seconds."""
    label = task.head if method == "diversed" else method
    studies = (task.scores, *filter(None, [task.seconds]))
    found = {each.metric: each.value for study in studies for each in figures(study) if each.method == label}
    parts = []
    if task.seconds and SECONDS in found:
        parts.append(f"{found[SECONDS]:.1f} s")
    elif not task.seconds and "mean_rounds" in found:
        parts.append(f"{found['mean_rounds']:.1f} forwards")
    if "quality" in found:
        parts.append(percent(found["quality"]) if task.is_share else f"{100 * found['quality']:.1f}")
    return ", ".join(parts) or "-"
