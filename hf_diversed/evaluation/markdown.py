"""Records of one or more evaluations as a Markdown table: a line per method, two columns per task."""

from collections.abc import Sequence

from hf_diversed.formatting import percent, with_bounds


def markdown_table(records: Sequence[dict], bounds: bool = False) -> str:
    """Acceptance rate and quality, methods by tasks (the layout of table 1 of arXiv 2604.07622).

    Args:
        records: of any number of evaluations and tasks. Every pair of temperature and draft length gets a table of its
            own, under a line that names it. A method that did not run on a task shows "-".
        bounds: add the 95% bounds.

    Raises:
        ValueError: without records, or if two of them claim the same cell.
    """
    if not records:
        raise ValueError("`records` must hold at least one record, got none; read them from an evaluation's JSON.")
    tables = []
    for temperature, gamma in dict.fromkeys((row["temperature"], row["num_assistant_tokens"]) for row in records):
        chosen = [row for row in records if (row["temperature"], row["num_assistant_tokens"]) == (temperature, gamma)]
        tables.append("\n".join(_table(chosen, bounds)))
    return "\n\n".join(tables) + "\n"


def setting(record: dict) -> str:
    """What distinguishes one table of a sweep from another, in words."""
    return f"temperature {record['temperature']:g}, {record['num_assistant_tokens']} drafts per round"


def _table(records: Sequence[dict], bounds: bool) -> list[str]:
    cells: dict[tuple[str, str], dict] = {}
    for row in records:
        key = (row["method"], row["task"])
        if key in cells:
            raise ValueError(f"two records say what {key[0]!r} does on {key[1]!r} at {setting(row)}; leave out one.")
        cells[key] = row
    methods, tasks = (list(dict.fromkeys(key[place] for key in cells)) for place in (0, 1))
    first = {task: next(row for row in records if row["task"] == task) for task in tasks}
    completions = ", ".join(f"{row['n']} x {row['samples_per_prompt']} ({task})" for task, row in first.items())
    head = " | ".join(f"{task}: accepted | {row['metric']}" for task, row in first.items())
    return [
        f"{setting(records[0]).capitalize()}; prompts x samples: {completions}.",
        "",
        f"| method | {head} |",
        "|---|" + "---:|" * (2 * len(tasks)),
        *(
            f"| `{method}` | {' | '.join(_cells(cells.get((method, task)), bounds) for task in tasks)} |"
            for method in methods
        ),
    ]


def _cells(row: dict | None, bounds: bool) -> str:
    if row is None:
        return "- | -"
    names = ("acceptance_rate", "quality")
    return " | ".join(with_bounds(row, name) if bounds else percent(row[name]) for name in names)
