"""Labels of the reference methods, and formats of numbers, in tables, cards and documents."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


# Methods with which all others are compared: the target alone, and lossless speculative decoding.
PLAIN = "target"
LOSSLESS = "lossless"
# Prefix of the names of compiled methods.
COMPILED = "compiled:"


def percent(value: float | None) -> str:
    """Format 0.5 as "50.0%" and None as "-"."""
    return "-" if value is None else f"{value:.1%}".replace("-0.0%", "0.0%")


def with_bounds(record: Mapping[str, Any], name: str) -> str:
    """Format a value of a record with its 95% bounds, if it has any."""
    value, bounds = record.get(name), record.get(f"{name}_ci")
    if value is None or bounds is None:
        return percent(value)
    return f"{percent(value)} ({percent(bounds[0])} to {percent(bounds[1])})"


def number(value: float | None) -> str:
    """Format with two decimals; None as "-"."""
    return "-" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def duration(seconds: float) -> str:
    """Format seconds as "8 s", "3 min" or "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean lenience?)" for an error about an unknown name, or "" if no known name is similar."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""
