"""The `hf-diversed` command: parses the options of a command and runs it."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from hf_diversed._version import __version__
from hf_diversed.cli import options
from hf_diversed.cli.terminal import INTERRUPTED, USAGE, errors_as_text
from hf_diversed.formatting import did_you_mean


# Module, function and summary of each command.
COMMANDS = {
    "demo": ("demo", "demo", "Compare decoding methods on the embedded pair, offline."),
    "generate": ("generate", "generate", "Continue a prompt and colour each token by its origin."),
    "train": ("train", "train", "Train a head for a pair and a task."),
    "tune-draft": ("train", "tune_draft", "Tune a draft model towards its target, by LoRA or with all weights."),
    "label": ("label", "label", "Measure what keeping rejected draft tokens costs, for train --labels."),
    "evaluate": ("evaluate", "evaluate", "Measure quality, acceptance and cost of methods on a task."),
    "frontier": ("evaluate", "frontier", "Sweep the parameter of method families on a task."),
    "calibrate": ("calibrate", "calibrate", "Find the strictness of a head for a tolerated quality drop."),
    "compile": ("compile", "compile_rounds", "Compile the rounds of later calls, into a cache on disk."),
    "serve": ("serve", "serve", "Serve a pair with vLLM; unknown options are passed to vLLM."),
    "push": ("publish", "push", "Publish a head on the Hub."),
    "card": ("publish", "card", "Render the model card that a push would publish."),
    "info": ("publish", "info", "Show a head's pair, sizes, task and results."),
}
_HELP = {"-h", "--help", "--help-all"}


def app(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors are printed and raise SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in _HELP:
        print(_overview())
        return 0 if arguments else USAGE
    if arguments[0] == "--version":
        print(f"hf-diversed {__version__}")
        return 0
    with errors_as_text():
        classes = options.classes_of(_function(arguments[0]))
    words, debug = options.without_debug([options.spelled(word) for word in arguments[1:]], classes)
    try:
        with errors_as_text(debug, options.own_names(classes)):
            call(arguments[0], words)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def call(name: str, argv: Sequence[str]) -> Any:
    """Parse the options of a command, run it, and return its result; or print its help, if requested."""
    function = _function(name)
    parser = options.Parser(options.classes_of(function), name.replace("_", "-"), function.__doc__ or "")
    if help_options := _HELP & set(argv):
        print(parser.help("--help-all" in help_options))
        return None
    values, more = parser.parse([options.spelled(word) for word in argv])
    if getattr(values[0], "yes", False):
        os.environ["HF_DIVERSED_YES"] = "1"
    if name == "serve":
        return function(*values, more)
    options.refuse_unknown(more, parser)
    return function(*values)


def _function(name: str) -> Callable[..., Any]:
    command = COMMANDS.get(name.replace("_", "-"))
    if command is None:
        raise ValueError(f"no such command: {name}{did_you_mean(name, COMMANDS)}; commands: {', '.join(COMMANDS)}.")
    module, attribute, _ = command
    function: Callable[..., Any] = getattr(import_module(f"hf_diversed.cli.{module}"), attribute)
    return function


def _overview() -> str:
    lines = [f"  {name:<12}{summary}" for name, (*_, summary) in COMMANDS.items()]
    return (
        "usage: hf-diversed COMMAND [options]\n\nRelaxed speculative decoding for Hugging Face models.\n\ncommands:\n"
        + "\n".join(lines)
        + "\n\n`hf-diversed COMMAND --help` shows the options of a command, `hf-diversed --version` the version."
    )
