"""How results look in a terminal."""

import math

from rich import box
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from hf_diversed.cli.comparison import Row
from hf_diversed.outputs import SpeculativeStats, TokenRecords
from hf_diversed.token_view import ORIGINS, TARGET, Piece, TokenReader


def comparison_table(rows: list[Row], right: list[float] | None = None, num_prompts: int = 0) -> Table:
    """One line per method, within 80 columns.

    "accepted" is accepted / drafted, "forward" a forward of the target; `right` adds answers out of `num_prompts`.
    """
    table = Table(header_style="bold", box=box.SIMPLE)
    table.add_column("method", no_wrap=True)
    headers = ["accepted", "tokens per\nforward", "tokens/s", "vs\nplain"]
    for header in headers + (["right"] if right is not None else []):
        table.add_column(header, justify="right")
    plain = next((_speed(row) for row in rows if row.stats is None), float("nan"))
    for index, row in enumerate(rows):
        per_forward = row.num_tokens / row.row_forwards
        acceptance = "-" if row.stats is None else f"{row.stats.acceptance_rate:.1%}"
        cells = [row.label, acceptance, f"{per_forward:.2f}", f"{_speed(row):.0f}", _times(_speed(row) / plain)]
        if right is not None:
            cells.append(f"{right[index]:g}/{num_prompts}")
        table.add_row(*cells)
    return table


def compiled_line(plain: Row, ours: Row, eager: list[Row]) -> str:
    """What compiling is worth, and what it took, in words; `eager` may hold the same method as it is, last."""
    parts = [f"{_times(_speed(ours) / _speed(plain))} of plain decoding, compiled as well"]
    if eager:
        parts.insert(0, f"{_times(_speed(ours) / _speed(eager[-1]))} of the same rule not compiled")
    return (
        f"{ours.label}: {' and '.join(parts)}. Compiling took {plain.compile_seconds:.0f} s for plain decoding and "
        f"{ours.compile_seconds:.0f} s for the rounds, once."
    )


def token_text(tokenizer: PreTrainedTokenizerBase, records: TokenRecords | None) -> Text:
    """The first row's tokens, coloured by origin."""
    return Text() if records is None else pieces_text(TokenReader(tokenizer).read(records))


def pieces_text(pieces: list[Piece]) -> Text:
    """Pieces, coloured by origin."""
    return Text.assemble(*((piece.text, ORIGINS[piece.origin].style) for piece in pieces))


def source_legend() -> Text:
    """What the colours of `token_text` mean."""
    text = Text()
    for name, origin in ORIGINS.items():
        if name != TARGET:
            text.append(f" {origin.meaning} ", style=origin.style)
            text.append("  ")
    return text


def stats_line(label: str, stats: SpeculativeStats, seconds: float) -> str:
    """A call in one line; the rates of the draft only where there was one."""
    parts = [f"{stats.num_emitted} tokens in {seconds:.2f} s ({stats.num_emitted / seconds:.0f} tokens/s)"]
    if stats.num_drafted:
        parts.append(f"{stats.acceptance_rate:.1%} of {stats.num_drafted} drafts accepted")
    parts.append(f"{stats.block_efficiency:.2f} tokens per target forward")
    if not math.isnan(stats.mean_weight):
        parts.append(f"mean w {stats.mean_weight:.2f}")
    if not math.isnan(stats.quality):
        parts.append(f"quality {stats.quality:g}")
    return f"{label}: {', '.join(parts)}"


def _speed(row: Row) -> float:
    return row.num_tokens / row.seconds


def _times(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}x"
