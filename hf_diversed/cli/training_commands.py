"""`hf-diversed train` and `tune-draft`: help of their options, and the commands."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping

import typer

from hf_diversed.cli.terminal import errors_in_words
from hf_diversed.cli.train_options import TrainArguments, TuneDraftArguments
from hf_diversed.training.settings import DraftTuningSettings, HeadTrainingSettings


# The most used of the hundred options of transformers' trainer.
_OF_UPSTREAM = {
    "--output-dir": ("DIR", "Folder of the checkpoints and of the result. (default: head, tuned-draft)"),
    "--resume-from-checkpoint": ("DIR", "Continue from this checkpoint; true means --resume."),
    "--seed": ("SEED", "Seed of prompts, rollouts and weights. (default: 42)"),
    "--use-cpu": ("BOOL", "Train on the CPU. (default: False)"),
    "--push-to-hub": ("BOOL", "Push the head to the Hub when it is saved. (default: False)"),
}
_HELP, _HELP_ALL, _DEBUG = {"-h", "--help"}, "--help-all", "--debug"


def train(context: typer.Context) -> None:
    """Train a head for a task and a pair: hf-diversed train --task math --output-dir head-math."""

    def run(argv: list[str]) -> None:
        from hf_diversed.cli.train import train as run_training

        run_training(argv)

    _run("train", context.args, {"what to train on": TrainArguments, "how": HeadTrainingSettings}, run)


def tune_draft(context: typer.Context) -> None:
    """Tune the draft towards its target, by LoRA or as a whole: hf-diversed tune-draft --task math --output-dir d."""

    def run(argv: list[str]) -> None:
        from hf_diversed.cli.tune_draft import tune

        tune(argv)

    _run("tune-draft", context.args, {"what to tune on": TuneDraftArguments, "how": DraftTuningSettings}, run)


def _run(name: str, argv: list[str], sections: Mapping[str, type], run: Callable[[list[str]], None]) -> None:
    """Print the help if requested, otherwise run."""
    argv, debug = _without_debug(argv)
    with errors_in_words(debug, [item.name for section in sections.values() for item in dataclasses.fields(section)]):
        if _HELP & set(argv):
            print(own_help(name, sections) + f"\n{_HELP_ALL} also shows the options of transformers' trainer.")
        elif _HELP_ALL in argv:
            from hf_diversed.cli.options import upstream_help

            print(own_help(name, sections) + "\n" + upstream_help(sections.values()))
        else:
            run(argv)


def _without_debug(argv: list[str]) -> tuple[list[str], bool]:
    """Remove `--debug` without a value, which shows tracebacks; with a value it is an option of the trainer."""
    ends = [*argv[1:], "--"]
    bare = [option == _DEBUG and following.startswith("-") for option, following in zip(argv, ends)]
    return [option for option, ours in zip(argv, bare) if not ours], any(bare)


def own_help(name: str, sections: Mapping[str, type]) -> str:
    """Return the help of our own options, from their dataclasses."""
    usage = f"hf-diversed {name} --task TASK [options]"
    parser = argparse.ArgumentParser(usage=usage, add_help=False)
    for title, section in sections.items():
        group = parser.add_argument_group(title)
        for item in dataclasses.fields(section):
            words = item.metadata["help"].replace("%", "%%")
            default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            if default is not dataclasses.MISSING and default is not None and default is not False:
                words += f" (default: {' '.join(default) if isinstance(default, list) else default})"
            option = f"--{item.name.replace('_', '-')}"
            if default is False:
                group.add_argument(option, action="store_true", help=words)
            else:
                metavar = "BOOL" if default is True else item.name.rpartition("_")[2].upper()
                group.add_argument(option, metavar=metavar, help=words)
    group = parser.add_argument_group("besides")
    for option, (metavar, words) in _OF_UPSTREAM.items():
        group.add_argument(option, metavar=metavar, help=words)
    group.add_argument("--config", metavar="FILE", help="YAML file with any of these options; the command line wins.")
    group.add_argument(_DEBUG, action="store_true", help="Show the traceback of an error.")
    return parser.format_help()
