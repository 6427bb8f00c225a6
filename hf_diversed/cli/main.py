"""The `hf-diversed` command. Neither this module nor `--help` imports torch or transformers: commands import them."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from hf_diversed._version import __version__
from hf_diversed.cli import options


# Options of each command, and the module and function that run it.
COMMANDS: dict[str, tuple[type[options.Options], str, str]] = {
    "demo": (options.DemoOptions, "demo", "demo"),
    "train": (options.TrainOptions, "train", "train"),
    "evaluate": (options.EvaluateOptions, "evaluate", "evaluate"),
    "calibrate": (options.CalibrateOptions, "calibrate", "calibrate"),
    "serve": (options.ServeOptions, "serve", "serve"),
    "push": (options.PushOptions, "publish", "push"),
}
_PASSES_ON = {"ignore_unknown_options": True, "allow_extra_args": True}

app = typer.Typer(
    help="Relaxed speculative decoding for Hugging Face models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        "token_normalize_func": lambda name: name.replace("_", "-"),  # --num_examples is --num-examples
    },
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


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Use the values of a YAML file as defaults of the command's options."""
    if path is not None:
        try:
            values = options.read_config(path, {item.name for item in context.command.params})
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        context.default_map = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in values.items()
        }
    return path


_CONFIG = Annotated[
    Path | None,
    typer.Option(callback=_read_config, is_eager=True, help="YAML file with any of these options."),
]
_DEBUG = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _parameter(item: Field, hint: Any) -> inspect.Parameter:
    """Return the parameter that typer reads for a field of a dataclass of options."""
    default = inspect.Parameter.empty if item.default is MISSING else item.default
    hidden = item.default is False or item.default in (None, "")
    shown: dict[str, Any] = {"help": item.metadata["help"], "show_default": not hidden}
    if "positional" in item.metadata:
        info = typer.Argument(metavar=item.name.upper(), **shown)
    else:  # flags without their negation
        names = (options.flag(item.name), *item.metadata.get("aliases", []))
        info = typer.Option(*([] if hint == bool | None else names), **shown)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(item.name, kind, default=default, annotation=Annotated[hint, info])


def _command(name: str) -> Callable[..., None]:
    """Return the function of a command with the signature that typer expects."""
    kind, module, function = COMMANDS[name]
    hints = get_type_hints(kind)

    def command(context: typer.Context, **values: Any) -> None:
        from hf_diversed.cli.terminal import errors_as_text

        del values["config"]
        with errors_as_text(values.pop("debug"), hints):
            given = kind(**values)
            run = getattr(import_module(f"hf_diversed.cli.{module}"), function)
            run(given, *([context.args] if name == "serve" else []))

    keyword = inspect.Parameter.KEYWORD_ONLY
    first, _ = inspect.signature(command).parameters.values()
    parameters = [_parameter(item, hints[item.name]) for item in fields(kind)]
    parameters.append(inspect.Parameter("config", keyword, default=None, annotation=_CONFIG))
    parameters.append(inspect.Parameter("debug", keyword, default=False, annotation=_DEBUG))
    vars(command)["__signature__"] = inspect.Signature([first, *parameters])
    return command


def _train(context: typer.Context) -> None:
    from hf_diversed.cli import training

    training.main(context.args)


for _name, (_kind, *_) in COMMANDS.items():
    _help = inspect.cleandoc(_kind.__doc__ or "")
    _texts: dict[str, Any] = {"help": _help, "short_help": _help.partition("\n")[0]}
    if _name == "train":  # its options are read by transformers' parser
        _settings = {**_PASSES_ON, "help_option_names": []}
        app.command(_name, **_texts, add_help_option=False, context_settings=_settings)(_train)
    elif _name == "serve":  # without -h, which the parser would find in options of vLLM such as -dph
        app.command(_name, **_texts, context_settings={**_PASSES_ON, "help_option_names": ["--help"]})(_command(_name))
    else:
        app.command(_name, **_texts)(_command(_name))
