"""Where commands print, and how they say what went wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from hf_diversed.sandbox import SandboxUnavailable


console = Console()
notes = Console(stderr=True)  # beside the output proper, which may go into a pipe


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Say in a line, without a traceback, what was refused; the command exits with 2."""
    try:
        yield
    except (ValueError, OSError, SandboxUnavailable) as error:
        console.print(Text(str(error), style="red"))
        raise typer.Exit(2) from error
