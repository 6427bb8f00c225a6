"""The `hf-diversed` command: its six commands, and how their errors are shown.

Neither this module nor `--help` imports torch or transformers; the body of a command imports what it needs.
"""

import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hf_diversed._version import __version__
from hf_diversed.cli.calibrate import calibrate
from hf_diversed.cli.demo import demo
from hf_diversed.cli.evaluate import evaluate
from hf_diversed.cli.options import DEBUG
from hf_diversed.cli.push import push
from hf_diversed.cli.serve import serve
from hf_diversed.cli.train import TrainCommand, train


class _Commands(TyperGroup):
    """Shows an error of the library as its message, on standard error, with exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, BrokenPipeError):  # exit codes, and a closed pipe, which typer handles
            raise
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except (ValueError, TypeError, OSError, ImportError, ArithmeticError, RuntimeError, AssertionError) as error:
            if ctx.meta.get(DEBUG):
                traceback.print_exc()
            print(str(error) or type(error).__name__, file=sys.stderr)
            raise SystemExit(2) from error


app = typer.Typer(
    cls=_Commands,
    help="Relaxed speculative decoding for Hugging Face models.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(shown: bool) -> None:
    if shown:
        print(f"hf-diversed {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


# The options of vLLM and of transformers' trainer pass through. Without -h, which is part of vLLM's -dph.
_PASSES_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["--help"]}

app.command()(demo)
app.command(cls=TrainCommand, context_settings=_PASSES_ON)(train)
app.command()(evaluate)
app.command()(calibrate)
app.command()(push)
app.command(context_settings=_PASSES_ON)(serve)
