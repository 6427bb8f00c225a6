"""The table of evaluation results for a terminal."""

from rich import box
from rich.table import Table
from rich.text import Text

from hf_diversed.formatting import PLAIN, number, percent, with_bounds


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
