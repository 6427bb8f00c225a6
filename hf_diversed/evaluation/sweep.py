"""Several evaluations of the same prompts under different settings, in one result."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.evaluation.evaluate import REPORT, Run, prepare
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.files import write_json
from hf_diversed.harness.methods import HeadLike, MethodLike
from hf_diversed.harness.pair import Pair
from hf_diversed.tasks import PromptedTask, Task


# Methods, their settings, and the folder that stores their calls (None: nothing is stored).
Part = tuple[Sequence[MethodLike], EvaluationSettings, Path | None]


def sweep(
    pair: Pair,
    task: Task | PromptedTask,
    examples: Sequence[Mapping[str, Any]],
    parts: Sequence[Part],
    *,
    head: HeadLike | None = None,
    output: Path | None = None,
    overwrite: bool = False,
) -> list[dict]:
    """Run several evaluations on the same prompts; an interrupted sweep continues where it stopped.

    All parts are checked before earlier results are removed and before the first part runs.

    Args:
        pair, task, examples, head, overwrite: as in `evaluate`.
        output: a file for {"records": [...], "provenance": {...}} of all parts, see `merge_reports`; requires a
            folder for every part.

    Returns:
        The records of all parts, in order; empty, and no file is written, while other processes have unfinished calls.
    """
    runs = [Run(pair, task, examples, methods, settings, head, folder) for methods, settings, folder in parts]
    prepare(runs, overwrite)
    done = [run.complete() for run in runs]
    if not all(done):  # another process may have finished an earlier part meanwhile
        done = [run.complete() for run in runs]
    if not all(done):
        return []
    if output is not None:
        reports = [json.loads((folder / REPORT).read_text()) for _, _, folder in parts if folder is not None]
        write_json(output, merge_reports(reports))
    return [record for records in done for record in records]


def merge_reports(reports: Sequence[dict]) -> dict:
    """Join reports of `evaluate`; a single one is returned unchanged.

    The records of several are concatenated, and `provenance` is that of the first, with `evaluations` and
    `methods_of_evaluations`, one per report, in place of `evaluation` and `methods`. `sessions` lists the other
    sessions.
    """
    if len(reports) == 1:
        return reports[0]
    sources = [report["provenance"] for report in reports]
    part_fields = ("evaluation", "methods", "sessions")
    sessions: list[dict] = []
    for source in sources:
        session = {name: value for name, value in source.items() if name not in part_fields}
        sessions += [session, *source.get("sessions", [])]
    several = {
        "evaluations": [source["evaluation"] for source in sources],
        "methods_of_evaluations": [source["methods"] for source in sources],
        "sessions": sessions[1:],
    }
    return {"records": [row for report in reports for row in report["records"]], "provenance": sessions[0] | several}
