"""The commands. Their modules contain the text of `--help`; other imports happen when a command runs."""

from typing import Annotated

import typer

from hf_diversed._version import __version__
from hf_diversed.cli.calibrate import calibrate
from hf_diversed.cli.compile import compile_rounds
from hf_diversed.cli.convert import convert
from hf_diversed.cli.demo import demo
from hf_diversed.cli.evaluate import evaluate
from hf_diversed.cli.frontier import frontier
from hf_diversed.cli.generate import generate
from hf_diversed.cli.make_draft import make_draft
from hf_diversed.cli.plot import plot
from hf_diversed.cli.publish import card, info, push
from hf_diversed.cli.serve import serve
from hf_diversed.cli.terminal import command, console
from hf_diversed.cli.training_commands import train, tune_draft


def _spelled(name: str) -> str:
    """Return the name of an option or command with hyphens; underscores and earlier names are accepted."""
    name = name.replace("_", "-")
    return _EARLIER.get(name, name)


_EARLIER = {"gamma": "num-assistant-tokens", "num-prompts": "num-examples"}


app = typer.Typer(
    help="Relaxed speculative decoding for Hugging Face models.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"token_normalize_func": _spelled},
)
for measured in (demo, generate, evaluate, calibrate, frontier, plot, convert, push, card, info):
    app.command()(command(measured))

app.command("compile")(command(compile_rounds))
app.command("make-draft")(command(make_draft))

# Unknown options are passed to vLLM.
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)

# Their options, over a hundred, are fields of dataclasses, with a parser and help of their own.
for trained in (train, tune_draft):
    app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(
        trained
    )


def _version(asked: bool) -> None:
    if asked:
        console.print(f"hf-diversed {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Relaxed speculative decoding for Hugging Face models."""
