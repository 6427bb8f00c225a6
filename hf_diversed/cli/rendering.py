"""How results look in a terminal."""

import math

from rich import box
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from hf_diversed.cli.comparison import Row
from hf_diversed.outputs import SOURCES, TokenRecords


STYLES = {
    "draft": ("green", "accepted draft"),
    "relaxed": ("black on yellow", "relaxed: the target alone would have rejected it"),
    "residual": ("red", "residual: the target's correction"),
    "bonus": ("blue", "bonus: the target's next token"),
}


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


def token_text(tokenizer: PreTrainedTokenizerBase, records: TokenRecords | None) -> Text:
    """The first row's tokens, coloured by source."""
    text = Text()
    if records is None:
        return text
    special = set(tokenizer.all_special_ids)
    ids: list[int] = []
    shown = ""
    for token, source, relaxed in zip(records.tokens[0], records.source[0], records.relaxed[0]):
        if source < 0 or int(token) in special:
            continue
        ids.append(int(token))
        # Decoded with what precedes it: a token alone may lose its space, or be half a character.
        spelled = str(tokenizer.decode(ids))
        kind = "relaxed" if relaxed else SOURCES[int(source)]
        if not spelled.endswith("\ufffd"):
            text.append(spelled[len(shown) :], style=STYLES[kind][0])
            shown = spelled
    return text


def source_legend() -> Text:
    """What the colours of `token_text` mean."""
    text = Text()
    for style, meaning in STYLES.values():
        text.append(f" {meaning} ", style=style)
        text.append("  ")
    return text


def _speed(row: Row) -> float:
    return row.num_tokens / row.seconds


def _times(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}x"
