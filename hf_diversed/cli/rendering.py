"""Results as text for a terminal."""

import itertools

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hf_diversed.cli.comparison import Row
from hf_diversed.evaluation.markdown import setting
from hf_diversed.formatting import PLAIN, number, percent, with_bounds
from hf_diversed.hub.markdown import one_line
from hf_diversed.timing import Spread, paired_ratio, show_ratio
from hf_diversed.token_view import ORIGINS, TARGET, Piece


def comparison_table(rows: list[Row], right: list[float] | None = None, num_prompts: int = 0) -> Table:
    """Return a table of at most 80 columns, one line per method: medians over the repeats, ranges in parentheses.

    "accepted" is accepted / drafted. The first row is the reference of the ratios. `right` adds the number of right
    answers out of `num_prompts`.
    """
    table = Table(header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", no_wrap=True)
    for header in ("accepted", "tokens per\nround", "tokens/s", f"against {rows[0].label}"):
        table.add_column(header, justify="right")
    if right is not None:
        table.add_column("right", justify="right")
    for index, row in enumerate(rows):
        stats, speed = row.stats, row.tokens_per_second
        cells = [row.label, "-" if stats is None else f"{stats.acceptance_rate:.1%}"]
        cells += ["-" if stats is None else f"{stats.block_efficiency:.2f}", str(Spread.of(speed))]
        cells.append("-" if index == 0 else show_ratio(paired_ratio(speed, rows[0].tokens_per_second)))
        if right is not None:
            cells.append(f"{right[index]:g}/{num_prompts}")
        table.add_row(*cells)
    return table


def compiled_line(rows: list[Row]) -> str:
    """Return the gain and cost of compilation; the rows are those of `compiled_cases`."""
    _, eager, target, compiled = rows
    gains = (
        f"against {row.label}: {show_ratio(paired_ratio(compiled.tokens_per_second, row.tokens_per_second))}"
        for row in (eager, target)
    )
    return (
        f"{compiled.label}: {'; '.join(gains)}. Compilation took {target.compile_seconds:.0f} s for {target.label} "
        f"and {compiled.compile_seconds:.0f} s for {compiled.label}, once."
    )


def pieces_text(pieces: list[Piece]) -> Text:
    """Return the pieces, coloured by origin."""
    return Text.assemble(*((piece.text, ORIGINS[piece.origin].style) for piece in pieces))


def source_legend() -> Text:
    """Return the legend of the colours in `pieces_text`."""
    text = Text()
    for name, origin in ORIGINS.items():
        if name != TARGET:
            text.append(f" {origin.meaning} ", style=origin.style)
            text.append("  ")
    return text


def results_by_setting(rows: list[dict]) -> Group:
    """Return a table of results for each temperature and number of draft tokens, with headings."""
    parts: list[RenderableType] = []
    for title, records in itertools.groupby(rows, key=setting):
        parts += [Text(title.capitalize(), style="bold"), results_table(list(records))]
    return Group(*parts)


def results_table(rows: list[dict]) -> Table:
    """Return a table with acceptance, quality and time of each method, with 95% bounds.

    "cut off" is the share of answers that ended at the maximum length, before EOS or a stop string. The time per token
    is that of a batch: wall time over generated tokens. The speedup is that over the row of the target, in tokens per
    second.
    """
    table = Table(header_style="bold", box=box.SIMPLE, padding=0, show_edge=False)
    table.add_column("method", overflow="fold", no_wrap=max(len(row["method"]) for row in rows) <= 14)
    metric = one_line(rows[0].get("metric") or "quality")
    headers = ("accepted", "tokens per\nround", metric, "cut\noff", "below\nreference")
    for header in (*headers, "ms per\ntoken", "speedup over\ntarget"):
        width = min(10, max(len("(10.0%"), *map(len, header.split())))  # a narrow terminal does not cut digits off
        table.add_column(Text(header), justify="right", overflow="fold", min_width=width)
    speeds = {row["method"]: row.get("tokens_per_second") for row in rows}
    plain = speeds.get(PLAIN)
    for row in rows:
        speed = speeds[row["method"]]
        table.add_row(
            Text(one_line(row["method"])),  # untrusted: may come from the Hub
            with_bounds(row, "acceptance_rate"),
            number(row.get("block_efficiency")),
            with_bounds(row, "quality"),
            percent(row.get("cut_off_rate")),
            with_bounds(row, "quality_drop"),
            number(1e3 / speed if speed else None),
            f"{speed / plain:.2f}x" if speed and plain else "-",
        )
    return table
