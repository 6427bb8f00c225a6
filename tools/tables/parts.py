"""What a table is made of: rows, columns, formats and captions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hf_diversed.evaluation.table import percent
from tools.figures import Figure, data_path, figures


Format = Callable[[Figure], str]


def rate(figure: Figure) -> str:
    """Format 0.5 as "50.0%", with its bounds."""
    return _with_bounds(figure, percent)


def tenths(figure: Figure) -> str:
    """Format 0.5 as "50.0", in points, with its bounds."""
    return _with_bounds(figure, lambda value: f"{100 * value:.1f}".replace("-0.0", "0.0"))


def below(figure: Figure) -> str:
    """Format a difference of 0.5 as "-50.0", in points: how far the first method is below the second."""
    low, high = (None, None) if figure.low is None or figure.high is None else (-figure.high, -figure.low)
    return tenths(figure._replace(value=-figure.value, low=low, high=high))


def number(figure: Figure) -> str:
    """Format with two decimals and the bounds."""
    return _with_bounds(figure, lambda value: f"{value:.2f}".replace("-0.00", "0.00"))


def times(figure: Figure) -> str:
    """Format 1.5 as "1.50x", with its bounds, if they differ."""
    return factor(figure) if figure.low == figure.high else _with_bounds(figure, lambda value: f"{value:.2f}", "x")


def factor(figure: Figure) -> str:
    """Format 1.5 as "1.50x", without bounds."""
    return f"{figure.value:.2f}x"


def one_decimal(figure: Figure) -> str:
    """Format with one decimal, without bounds."""
    return f"{figure.value:.1f}"


def count(figure: Figure) -> str:
    """Format without decimals."""
    return f"{figure.value:,.0f}"


def num_right(figure: Figure) -> str:
    """Format a share of right answers as their number."""
    assert figure.n is not None
    return f"{figure.value * figure.n:.0f}"


def _with_bounds(figure: Figure, form: Callable[[float], str], unit: str = "") -> str:
    value = form(figure.value) + unit
    return value if figure.low is None else f"{value} ({form(figure.low)} to {form(figure.high)})"


class Row(NamedTuple):
    """A row: its label and what its figures have in common."""

    label: str
    method: str = ""
    study: str = ""
    task: str = ""


class Column(NamedTuple):
    """A column: its header, its metric and format, and what its figures have in common.

    `minus` is a method that is subtracted from the row's method.
    """

    header: str
    metric: str
    form: Format = rate
    study: str = ""
    task: str = ""
    method: str = ""
    minus: str = ""


@dataclass(frozen=True)
class Table:
    """A table of figures.

    Attributes:
        head: header of the labels.
        rows, columns: a row, or else the column, fixes study, task and method of a cell. Without a task, the study
            must have only one figure of this method and metric.
        caption: the setting. `{n}` stands for the numbers of prompts, `{data}` for the file of the first study.
    """

    head: str
    rows: Iterable[Row]
    columns: Iterable[Column]
    caption: str

    def render(self) -> str:
        """Return the table and its caption in Markdown.

        Raises:
            KeyError: if a row or a column has no figure.
            ValueError: if two figures belong in one cell.
        """
        rows, columns = list(self.rows), list(self.columns)
        cells = [[_find(row, column) for column in columns] for row in rows]
        for label, found in [*zip(rows, cells), *zip(columns, zip(*cells))]:
            if not any(found):
                raise KeyError(f"there is no figure for {label}")
        shown = [cell for row in cells for cell in row if cell]
        sizes = sorted({cell.n for cell in shown if cell.n is not None})
        study = rows[0].study or columns[0].study
        n = " or ".join(f"{size:,}" for size in sizes)
        caption = self.caption.format(n=n, data=f"`{data_path(study)}`" if "{data}" in self.caption else "")
        lines = (
            [row.label, *(column.form(cell) if cell else "-" for column, cell in zip(columns, found))]
            for row, found in zip(rows, cells)
        )
        return f"{markdown([self.head, *(column.header for column in columns)], lines)}\n\n{caption}"


def _find(row: Row, column: Column) -> Figure | None:
    study, task, method = row.study or column.study, row.task or column.task, row.method or column.method
    if column.minus:
        method = f"{method} minus {column.minus}"
    found = [
        figure
        for figure in figures(study)
        if (figure.method, figure.metric) == (method, column.metric) and task in ("", figure.task)
    ]
    if len(found) > 1:
        raise ValueError(f"there must be one figure for {row} and {column}, got {len(found)}.")
    return found[0] if found else None


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; cells are Markdown."""
    header = list(header)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def methods(study: str, *names: str | tuple[str, str], task: str = "") -> list[Row]:
    """Return rows of methods; a pair is a method and its label."""
    pairs = [(name, f"`{name}`") if isinstance(name, str) else name for name in names]
    return [Row(label, method, study, task) for method, label in pairs]


ACCEPTED = Column("accepted / drafted", "acceptance_rate")
PER_ROUND = Column("tokens per target forward", "block_efficiency", number)
DROP = Column("points below the target", "quality_drop", tenths)
