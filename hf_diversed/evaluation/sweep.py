"""Several evaluations of the same prompts under different settings, in one result."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.evaluation.calls import Task
from hf_diversed.evaluation.evaluate import REPORT, evaluate
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.running.files import write_json
from hf_diversed.running.methods import HeadLike, MethodLike, build_methods
from hf_diversed.running.pair import Pair


def sweep(
    pair: Pair,
    task: Task,
    examples: Sequence[Mapping[str, Any]],
    methods: Sequence[MethodLike],
    parts: Mapping[Path, EvaluationSettings],
    *,
    head: HeadLike | None = None,
    output: Path | None = None,
) -> list[dict]:
    """Evaluate the same methods on the same prompts under several settings.

    Args:
        pair, task, examples, methods, head: as in `evaluate`.
        parts: settings by the folder that keeps their calls, so that an interrupted sweep goes on where it stopped.
        output: a file for {"records": [...], "provenance": {...}} of all parts, see `merge_reports`.

    Returns:
        The records of all parts, in their order; none, and no file, while other processes have calls to finish.
    """
    built = build_methods(methods, head, pair.target.device)
    done = [evaluate(pair, task, examples, built, settings, output=folder) for folder, settings in parts.items()]
    if not all(done):  # of processes, another one may have finished an early part after this one went on
        done = [evaluate(pair, task, examples, built, settings, output=folder) for folder, settings in parts.items()]
    if not all(done):
        return []
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, merge_reports([json.loads((folder / REPORT).read_text()) for folder in parts]))
    return [record for records in done for record in records]


def merge_reports(reports: Sequence[dict]) -> dict:
    """What `evaluate` wrote several times, as one: a single report stays as it is.

    Of several, the records follow each other, and `provenance` is that of the first, with `evaluations` and
    `rules_of_evaluations`, one per report, in place of `evaluation` and `rules`.
    """
    if len(reports) == 1:
        return reports[0]
    first = {name: value for name, value in reports[0]["provenance"].items() if name not in ("evaluation", "rules")}
    sources = [report["provenance"] for report in reports]
    several = {"evaluations": [source["evaluation"] for source in sources]}
    several["rules_of_evaluations"] = [source["rules"] for source in sources]
    return {"records": [row for report in reports for row in report["records"]], "provenance": first | several}
