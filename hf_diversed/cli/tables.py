"""Tables of evaluation results."""

from collections.abc import Iterable

from rich import box
from rich.table import Table

from hf_diversed.formatting import number, percent, with_bounds


def results_table(rows: list[dict]) -> Table:
    """Return a table with acceptance and quality of each method and their 95% bounds."""
    table = Table(header_style="bold", box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    for header in ("accepted", "accepted,\nverified", "tokens per\nround", rows[0]["metric"], "below\nreference"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(
            row["method"],
            with_bounds(row, "acceptance_rate"),
            percent(row["verified_acceptance_rate"]),
            number(row["block_efficiency"]),
            with_bounds(row, "quality"),
            with_bounds(row, "quality_drop"),
        )
    return table


def accepted_length_table(rows: Iterable[dict]) -> Table:
    """Return a table of accepted draft tokens per round of each method, measured and predicted."""
    table = Table(header_style="bold", box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    headers = ("accepted\nper round", "predicted,\nexact", "predicted,\ni.i.d.", "standard errors\nfrom exact")
    for header in headers:
        table.add_column(header, justify="right")
    names = ("accepted_length", "accepted_length_exact", "accepted_length_iid", "accepted_length_z")
    for row in rows:
        if row["acceptance_rate"] is not None:
            table.add_row(row["method"], *(number(row[name]) for name in names))
    return table
