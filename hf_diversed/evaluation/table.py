"""Evaluation records as tables, for a terminal and in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.verifiers.names import PLAIN


def percent(value: float | None) -> str:
    """Format 0.5 as "50.0%" and None as "-"."""
    return "-" if value is None else f"{value:.1%}".replace("-0.0%", "0.0%")


def number(value: float | None) -> str:
    """Format with two decimals; None as "-"."""
    return "-" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def with_bounds(record: Mapping[str, Any], name: str) -> str:
    """Format a value of a record with its 95% bounds, if it has any."""
    value, bounds = record.get(name), record.get(f"{name}_ci")
    if value is None or bounds is None:
        return percent(value)
    return f"{percent(value)} ({percent(bounds[0])} to {percent(bounds[1])})"


def setting(record: Mapping[str, Any]) -> str:
    """Return the temperature and the number of draft tokens of a record, for the heading of its table."""
    return f"temperature {record['temperature']:g}, {record['num_assistant_tokens']} draft tokens per round"


def results_table(rows: list[dict]) -> Table:
    """Return a table with acceptance, quality and time of each method, with 95% bounds.

    "cut off" is the share of answers that ended at the maximum length, before EOS or a stop string. The time per token
    is that of a batch: wall time over generated tokens. The speedup is that over the row of the target at the same
    batch size, in tokens per second.
    """
    table = Table(header_style="bold", box=box.SIMPLE, padding=0, show_edge=False)
    table.add_column("method", overflow="fold", no_wrap=max(len(row["method"]) for row in rows) <= 14)
    metric = rows[0].get("metric") or "quality"
    headers = ("accepted", "tokens per\nround", metric, "cut\noff", "below\nreference")
    for header in (*headers, "ms per\ntoken", f"speedup,\nbatch {rows[0].get('batch_size', '-')}"):
        width = min(10, max(len("(10.0%"), *map(len, header.split())))  # a narrow terminal does not cut digits off
        table.add_column(Text(header), justify="right", overflow="fold", min_width=width)
    speeds = {row["method"]: row.get("tokens_per_second") for row in rows}
    plain = speeds.get(PLAIN)
    for row in rows:
        speed = speeds[row["method"]]
        table.add_row(
            Text(row["method"]),
            with_bounds(row, "acceptance_rate"),
            number(row.get("block_efficiency")),
            with_bounds(row, "quality"),
            percent(row.get("cut_off_rate")),
            with_bounds(row, "quality_drop"),
            number(1e3 / speed if speed else None),
            f"{speed / plain:.2f}x" if speed and plain else "-",
        )
    return table


def markdown_table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return acceptance rate, quality and share of cut off answers of each method, as Markdown."""
    first, names = records[0], ("acceptance_rate", "quality", "cut_off_rate")
    lines = [
        f"{first['task']}, {setting(first)}, {first['n']} prompts x {first['samples_per_prompt']} samples.",
        "",
        f"| method | accepted | {first['metric']} | cut off |",
        "|---|---:|---:|---:|",
        *(f"| `{row['method']}` | {' | '.join(percent(row.get(name)) for name in names)} |" for row in records),
    ]
    return "\n".join(lines) + "\n"
