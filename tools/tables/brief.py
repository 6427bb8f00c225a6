"""The README's table: time and score of each method on each task of the Qwen2.5-Coder pair."""

import json
from statistics import fmean
from typing import NamedTuple

from hf_diversed.evaluation.table import percent
from tools.figures import RESULTS, Figure, figures
from tools.tables.parts import markdown


class Task(NamedTuple):
    """A row: its label, the studies of the scores and of the seconds, the setting, whether scores are shares, and
    whether the study's head was trained on the task."""

    label: str
    scores: str
    seconds: str
    setting: str
    is_share: bool = True
    has_head: bool = True


TASKS = (
    Task(
        "summaries (SciTLDR, ROUGE-2)",
        "qwen-coder-scitldr",
        "qwen-coder-speed-scitldr",
        "summaries at temperature 1",
        is_share=False,
    ),
    Task("code (MBPP, right answers)", "qwen-coder-mbpp-t0", "qwen-coder-speed-mbpp-t0", "code, greedy"),
    Task(
        "math (GSM8K, right answers)",
        "qwen-coder-gsm8k-t0",
        "qwen-coder-speed-gsm8k-t0",
        "math, greedy",
        has_head=False,
    ),
)
# Methods and their headers. A study has one head, whose name begins with "diversed".
METHODS = {
    "target": "target alone",
    "upstream": "transformers' assisted generation",
    "lossless": "`lossless`",
    "lenience:0.1": "`lenience:0.1`",
    "diversed": "DIVERSED head",
}


def render() -> str:
    """Return the table of the tasks that were measured, and its setting."""
    tasks = [task for task in TASKS if (RESULTS / "real" / f"{task.scores}.json").is_file()]
    rows = [[task.label, *(_cell(task, method) for method in METHODS)] for task in tasks]
    sizes = "; ".join(f"{task.setting}, {figures(task.scores)[0].n} prompts" for task in tasks)
    untimed = any(not (RESULTS / "real" / f"{task.seconds}.json").is_file() for task in tasks)
    forwards = ", or target forwards where time was not measured," if untimed else ""
    setting = (
        f"Seconds per answer (batch size 1, two CPU threads){forwards} and score of Qwen2.5-Coder 1.5B with 0.5B: "
        f"{sizes}. Heads were trained on summaries, for a short time, and on code. transformers' scores were not "
        "measured; it is lossless. [Intervals, more methods](docs/results.md)."
    )
    return f"{markdown(['task', *METHODS.values()], rows)}\n\n{setting}"


def _cell(task: Task, method: str) -> str:
    """Return "5.4 s, 50.4%", or the part that was measured; "9.9 forwards, 10.5" without a study of the seconds."""
    if method == "diversed" and not task.has_head:
        return "-"
    score = _figure(task, method, "quality")
    if (RESULTS / "real" / f"{task.seconds}.json").is_file():
        parts = [_seconds(task.seconds, method)]
    else:
        forwards = _figure(task, method, "mean_rounds")
        parts = [f"{forwards.value:.1f} forwards" if forwards else ""]
    if score is not None:
        parts.append(percent(score.value) if task.is_share else f"{100 * score.value:.1f}")
    return ", ".join(filter(None, parts)) or "-"


def _is(label: str, method: str) -> bool:
    return label == method or (method == "diversed" and label.startswith("diversed"))


def _figure(task: Task, method: str, metric: str) -> Figure | None:
    found = (each for each in figures(task.scores) if _is(each.method, method) and each.metric == metric)
    return next((each for each in found if " minus " not in each.method), None)


def _seconds(study: str, method: str) -> str:
    """Return the mean seconds per prompt at batch size 1; empty for a method that was not timed."""
    parts = json.loads((RESULTS / "real" / f"{study}.json").read_text())["records"][0]["seconds"]
    timed = next(part for part in parts if part["batch_size"] == 1)["methods"]
    found = [timed[label]["turns"] for label in timed if _is(label, method)]
    return f"{fmean(second for turn in found[0] for second in turn['seconds']):.1f} s" if found else ""
