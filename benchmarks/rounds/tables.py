"""Tables of timings."""

from collections.abc import Callable, Iterator
from functools import partial

from rich import box
from rich.table import Table

from benchmarks.rounds.measure import LIMIT
from benchmarks.rounds.timing import PHASES
from hf_diversed.formatting import number, percent


def tables(records: list[dict]) -> Iterator[Table]:
    """Return tables of speed, rounds, compilation and parts of a round by point, medians over turns, in 80 columns."""
    for place, rows in _by_place(records).items():
        timed = [row for row in rows if row["method"] != LIMIT]
        if not timed:  # only the bandwidth limit
            continue
        yield _table(_title(*place), _SPEED, timed)
        yield _table("rounds", _ROUND, rows)
        compiled = [row for row in timed if row["compile_seconds"] is not None]
        if compiled:
            yield _table("compiled methods", _COMPILED, compiled)
        ours = [row for row in rows if row["breakdown"] is not None]
        if ours:
            yield _table("ms per round, by part", _PARTS, ours)


def _by_place(records: list[dict]) -> dict[tuple, list[dict]]:
    """Group records by batch size, context and draft length; the target alone is listed at every draft length."""
    places: dict[tuple, list[dict]] = {}
    for row in records:
        places.setdefault((row["batch_size"], row["context_length"], row["num_assistant_tokens"]), []).append(row)
    plain = {place: places.pop(place) for place in list(places) if place[-1] is None}
    target_rows = {place[:2]: [row for row in rows if row["method"] != LIMIT] for place, rows in plain.items()}
    return {place: target_rows.get(place[:2], []) + rows for place, rows in places.items()} or plain


def _title(rows: int, context: int, gamma: int | None) -> str:
    return f"rows {rows}, context {context or 'as given'}, draft tokens {gamma or '-'}"


def _table(title: str, columns: dict[str, Callable[[dict], str]], rows: list[dict]) -> Table:
    table = Table(
        title=title, title_justify="left", header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("method", no_wrap=True)
    for header in columns:
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(row["method"], *(figure(row) for figure in columns.values()))
    return table


def _median(spread: dict | None) -> float | None:
    return None if spread is None else spread["median"]


def _ratio(row: dict, reference: str, figure: str) -> float | None:
    return _median(row["ratios"].get(reference, {}).get(figure))


def _share(spread: dict | None) -> float | None:
    return None if spread is None else spread["median"] / 100


def _part(phase: str, row: dict) -> str:
    return number(row["breakdown"][phase])


_SPEED: dict[str, Callable[[dict], str]] = {
    "accepted": lambda row: percent(row["acceptance_rate"]),
    "tokens per\nround": lambda row: number(row["block_efficiency"]),
    "tokens/s": lambda row: number(_median(row["tokens_per_second"])),
    "x plain": lambda row: number(_ratio(row, "plain", "tokens_per_second")),
    "x plain\ncompiled": lambda row: number(_ratio(row, "plain_compiled", "tokens_per_second")),
}
_ROUND: dict[str, Callable[[dict], str]] = {
    "ms": lambda row: number(_median(row["ms_per_round"])),
    "of limit": lambda row: percent(row["limit_ms"] / row["ms_per_round"]["median"]),
    "x upstream's": lambda row: number(_ratio(row, "upstream", "ms_per_round") if row["batch_size"] == 1 else None),
    "x lossless": lambda row: number(_ratio(row, "lossless", "ms_per_round")),
    "head": lambda row: percent(_share(row["head_percent"])),
}
_COMPILED: dict[str, Callable[[dict], str]] = {
    "compile, s": lambda row: number(row["compile_seconds"]),
}
_PARTS: dict[str, Callable[[dict], str]] = {
    **{phase: partial(_part, phase) for phase in PHASES},
    "sum": lambda row: number(sum(row["breakdown"].values())),
}
