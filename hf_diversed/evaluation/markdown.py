"""Evaluation records as a Markdown table: a row per method, three columns per task."""

from collections.abc import Sequence

from hf_diversed.formatting import percent


def markdown_table(records: Sequence[dict]) -> str:
    """Acceptance rate, quality and share of cut off answers, methods by tasks (as table 1 of arXiv 2604.07622).

    Args:
        records: records of any number of evaluations and tasks. Each temperature and gamma has its own table.
            A method that did not run on a task shows "-".

    Raises:
        ValueError: without records, or with two records for one cell.
    """
    if not records:
        raise ValueError("`records` must hold at least one record, got none; read them from an evaluation's JSON.")
    tables = []
    for temperature, gamma in dict.fromkeys((row["temperature"], row["num_assistant_tokens"]) for row in records):
        chosen = [row for row in records if (row["temperature"], row["num_assistant_tokens"]) == (temperature, gamma)]
        tables.append("\n".join(_table(chosen)))
    return "\n\n".join(tables) + "\n"


def setting(record: dict) -> str:
    """Return the temperature and the number of draft tokens of a record, for the heading of its table."""
    return f"temperature {record['temperature']:g}, {record['num_assistant_tokens']} draft tokens per round"


def _table(records: Sequence[dict]) -> list[str]:
    cells: dict[tuple[str, str], dict] = {}
    for row in records:
        key = (row["method"], row["task"])
        if key in cells:
            raise ValueError(f"two records for method {key[0]!r} on task {key[1]!r} at {setting(row)}; pass only one.")
        cells[key] = row
    methods, tasks = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    first = {task: next(row for row in records if row["task"] == task) for task in tasks}
    completions = ", ".join(f"{row['n']} x {row['samples_per_prompt']} ({task})" for task, row in first.items())
    head = " | ".join(f"{task}: accepted | {row['metric']} | cut off" for task, row in first.items())
    return [
        f"{setting(records[0]).capitalize()}; prompts x samples: {completions}.",
        "",
        f"| method | {head} |",
        "|---|" + "---:|" * (3 * len(tasks)),
        *(f"| `{method}` | {' | '.join(_cells(cells.get((method, task))) for task in tasks)} |" for method in methods),
    ]


def _cells(row: dict | None) -> str:
    names = ("acceptance_rate", "quality", "cut_off_rate")
    return " | ".join("-" if row is None else percent(row.get(name)) for name in names)
