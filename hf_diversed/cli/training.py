"""The command line of `train`, read by transformers' `HfArgumentParser`.

The options are those of `TrainOptions` and of `DiversedConfig`, a subclass of `TrainingArguments`.
"""

import argparse
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from hf_diversed.cli.options import TrainOptions, flag, read_config
from hf_diversed.training.settings import TrainingSettings


# Options of transformers' trainer that `--help` also shows.
_USUAL = {
    "output_dir": "Folder for the result and its checkpoints.",
    "resume_from_checkpoint": "Folder of a checkpoint to continue from.",
    "seed": "Seed of prompts, rollouts and initial weights.",
    "use_cpu": "Train on the CPU.",
}
_HELP = {"-h", "--help", "--help-all"}
_MORE = "--help-all also shows the options of transformers' trainer; --debug the traceback of an error."


def main(argv: Sequence[str]) -> None:
    """Run a command line; errors are printed and raise SystemExit."""
    if _HELP & set(argv):
        print(help_text("--help-all" in argv))
        return
    words, debug = without_debug(argv)
    from hf_diversed.cli.terminal import errors_as_text

    names = {item.name for item in (*fields(TrainOptions), *fields(TrainingSettings))}
    with errors_as_text(debug, names):
        call(words)


def call(argv: Sequence[str]) -> Any:
    """Parse a command line, run the command, and return its result.

    Raises:
        ValueError: if an option is missing, unknown or has a wrong value; and as the command.
    """
    from hf_diversed.cli.train import train

    return train(*parse(argv))


def parse(argv: Sequence[str]) -> tuple[TrainOptions, Any]:
    """Return the options and the `DiversedConfig`; the command line takes precedence over `--config run.yaml`."""
    from transformers import HfArgumentParser

    from hf_diversed.training import DiversedConfig

    class Parser(HfArgumentParser):
        def error(self, message: str):
            raise ValueError(message)

    parser = Parser((TrainOptions, DiversedConfig), add_help=False, allow_abbrev=False)
    parser.set_defaults(**TrainOptions.DEFAULTS)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path)
    given, words = first.parse_known_args(argv)
    if given.config is not None:
        known = {item.name for item in (*fields(TrainOptions), *fields(DiversedConfig))}
        words = [*_words(given.config, known), *words]
    options, config, more = parser.parse_args_into_dataclasses(
        words, look_for_args_file=False, return_remaining_strings=True
    )
    if more:
        kind = "option" if more[0].startswith("-") else "argument"
        raise ValueError(f"no such {kind}: {more[0]}; --help-all lists all.")
    return options, config


def without_debug(argv: Sequence[str]) -> tuple[list[str], bool]:
    """Remove `--debug`, which shows tracebacks. With a value, `--debug` is an option of transformers' trainer."""
    ours = [word == "--debug" and after.startswith("-") for word, after in zip(argv, [*argv[1:], "--"])]
    return [word for word, removed in zip(argv, ours) if not removed], any(ours)


def help_text(everything: bool = False) -> str:
    """Return the help of our options and, if `everything`, of those of transformers' trainer."""
    parser = argparse.ArgumentParser(
        prog="hf-diversed train",
        usage="%(prog)s [options]",
        description=" ".join((TrainOptions.__doc__ or "").split()),
        epilog=None if everything else _MORE,
        add_help=False,
    )
    defaults = TrainOptions.DEFAULTS
    group = parser.add_argument_group("options")
    _show(group, fields(TrainOptions), defaults)
    group.add_argument("--config", metavar="FILE", help="YAML file with any of these options.")
    group = parser.add_argument_group("options of training")
    _show(group, fields(TrainingSettings), defaults)
    for option, text in _USUAL.items():
        shown = f" (default: {defaults[option]})" if option in defaults else ""
        group.add_argument(flag(option), metavar="VALUE", help=text + shown)
    if everything:
        group = parser.add_argument_group("options of transformers' trainer")
        from hf_diversed.training import DiversedConfig

        known = {item.name for item in (*fields(TrainOptions), *fields(TrainingSettings))} | set(_USUAL)
        _show(group, [item for item in fields(DiversedConfig) if item.name not in known], defaults)
    return parser.format_help().strip()


def _show(group: Any, items: Sequence[Field], defaults: Mapping[str, Any]) -> None:
    """Add options to a group of a parser that only prints help."""
    for item in sorted(items, key=lambda item: item.default is not MISSING or item.default_factory is not MISSING):
        text, default = item.metadata["help"].replace("%", "%%"), defaults.get(item.name, item.default)
        if default not in (None, "", MISSING) and default is not False:
            text += f" (default: {default})"
        names = flag(item.name), *item.metadata.get("aliases", [])
        if item.type is bool:
            group.add_argument(*names, action="store_true", help=text)
        else:
            group.add_argument(*names, metavar=item.name.rpartition("_")[2].upper(), help=text)


def _words(path: Path, known: Collection[str]) -> list[str]:
    """Return the options in a YAML file as words of a command line."""
    words: list[str] = []
    for name, value in read_config(path, known).items():
        if isinstance(value, list):
            words += [flag(name), *map(str, value)]
        else:
            words.append(f"{flag(name)}={json.dumps(value) if isinstance(value, dict) else value}")
    return words
