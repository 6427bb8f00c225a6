"""Output of commands and their error messages."""

import re
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text
from transformers.utils import logging

from hf_diversed import _compat
from hf_diversed.cli.options import flag


console = Console()  # results, which may be redirected; everything else goes to `notes`
notes = Console(stderr=True)

USAGE, FAILURE = 2, 1  # exit codes: invalid request, or failure during the run
INTERRUPTED = 130

# The extra that installs each module; import errors name the module, not the package.
EXTRAS = {
    "datasets": "train",
    "lm_eval": "eval",
    "math_verify": "train",
    "matplotlib": "plot",
    "rouge_score": "train",
    "sacrebleu": "train",
}


@contextmanager
def errors_as_text(debug: bool = False, options: Collection[str] = ()) -> Iterator[None]:
    """Print errors on standard error, without a traceback unless `debug`, and exit; Ctrl-C exits with code 130.

    Args:
        options: names of the command's options, which are written as flags in the messages.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except (ValueError, TypeError) as error:
        _fail(in_flags(str(error), options), debug, USAGE)
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(module)
        advice = f'{module} is not installed: pip install "hf-diversed[{extra}]"'
        _fail(str(error) if extra is None else advice, debug)
    except BrokenPipeError:  # standard output was closed, as by `head`; click exits with code 1 and no message
        raise
    except (OSError, FloatingPointError) as error:  # a file, or scores of a model that are NaN
        _fail(str(error), debug)
    except (RuntimeError, AssertionError) as error:  # from torch: out of memory, missing kernel, built without CUDA
        _fail(f"{type(error).__name__}: {error}" + ("" if debug else "\n--debug shows where."), debug)


def _fail(sentence: str, debug: bool, code: int = FAILURE) -> None:
    if debug:
        traceback.print_exc()
    notes.print(Text(sentence, style="red"), soft_wrap=True)
    raise SystemExit(code)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """On Ctrl-C print how to continue, and exit with code 130, as shells do."""
    try:
        yield
    except KeyboardInterrupt as error:
        notes.print(Text(f"Interrupted. {advice}", style="red"), soft_wrap=True)
        raise SystemExit(INTERRUPTED) from error


_NAMES = re.compile(r"`(\w+)`|(?<![\w/.:-])(\w+)=(?=[\s,.;)]|$)|(?<![\w/.:-])(\w+_\w+)(?![\w/=-])")
_RENAMED = {"verifier": "method", "n": "num_examples"}  # for commands that have only the second name


def in_flags(message: str, options: Collection[str]) -> str:
    """Replace Python arguments by the flags of the command line: `top_p` by --top-p, diversed_head= by --head."""

    def as_flag(match: re.Match) -> str:
        name = next(name for name in match.groups() if name).removeprefix("diversed_")
        name = name if name in options else _RENAMED.get(name, name)
        return flag(name) if name in options else match[0]

    return _NAMES.sub(as_flag, message)


def show_own_warnings_only() -> None:
    """Show warnings of this library, but only errors of transformers."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    _compat.get_logger("hf_diversed").setLevel(logging.WARNING)
