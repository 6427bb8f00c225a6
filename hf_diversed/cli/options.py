"""Shared by the training commands: dataclasses as options with defaults from a YAML file, and rows of a task."""

import argparse
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser, TrainingArguments

from hf_diversed.formatting import did_you_mean
from hf_diversed.tasks.base import Task
from hf_diversed.tasks.loading import choose, load_records
from hf_diversed.tasks.rows import prompt_rows


def parse_options(classes: Iterable[type], argv: list[str], prog: str, **defaults: Any) -> tuple:
    """Read dataclasses from the command line, which takes precedence over `--config run.yaml`. Hyphens and underscores
    are equivalent, also in the file.

    Args:
        defaults: replace those of the dataclasses.

    Raises:
        ValueError: for an unknown option or a missing file.
    """
    parser = HfArgumentParser(tuple(classes), prog=prog, usage=f"{prog} [options]; --help lists them")
    parser.add_argument("--config", help="YAML file with any of these options.")
    parser.set_defaults(**defaults)
    first = argparse.ArgumentParser(prog=prog, add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    path = first.parse_known_args(argv)[0].config
    if path is not None:
        found, unknown = _by_destination(_read_config(path), parser)
        if unknown:
            raise ValueError(f"the config names options that do not exist: {', '.join(unknown)}; see --help.")
        parser.set_defaults(**found)
        for action in parser._actions:
            action.required = action.required and action.dest not in found
    _spell_with_hyphens(parser)
    *parsed, _, unknown = parser.parse_args_into_dataclasses(
        argv, look_for_args_file=False, return_remaining_strings=True
    )
    if unknown:
        known = [option for action in parser._actions for option in action.option_strings]
        raise ValueError(f"no such option: {unknown[0]}{did_you_mean(unknown[0], known)}; --help lists all.")
    return tuple(parsed)


def upstream_help(ours: Iterable[type]) -> str:
    """Return the help of the options of transformers' trainer, without those that `ours` define."""
    parser = HfArgumentParser(TrainingArguments, usage=argparse.SUPPRESS, add_help=False)
    _spell_with_hyphens(parser)
    explained = {item.name for section in ours for item in dataclasses.fields(section)}
    for action in parser._actions:
        if action.dest in explained:
            action.help = argparse.SUPPRESS
    return parser.format_help().replace("options:", "of transformers' trainer:", 1)


def resume_point_of(given: str | bool | None, resume: bool) -> str | bool | None:
    """Return where a run continues: a checkpoint's folder, True for the newest complete one, None for the start.

    Args:
        given: value of `--resume-from-checkpoint`; "true" as in scripts of transformers. resume: `--resume`.

    Raises:
        ValueError: if the path is not a folder.
    """
    words = "" if given is None else str(given)
    if words.lower() in ("", "false", "true"):
        return True if resume or words.lower() == "true" else None
    if not Path(words).is_dir():
        raise ValueError(
            f"--resume-from-checkpoint must name an existing folder, got {words!r}; --resume continues from "
            "the newest complete checkpoint in --output-dir."
        )
    return words


def read_records(task: Task, split: str, n: int, seed: int, data_file: str | None) -> list[dict[str, Any]]:
    """Return `n` records of a split or a file; all records of a smaller file."""
    if data_file is None:
        return load_records(task, split, n, seed)
    records = load_records(task, split, data_file=data_file)
    return choose(records, min(n, len(records)), seed, data_file)


def supervised_rows(task: Task, records: list[dict[str, Any]], shots: int, chat: bool) -> list[dict[str, Any]]:
    """Return rows with "prompt" and "completion", the reference; solved examples come from the other records."""
    references = [task.chat_answer(record) if chat else task.reference(record) for record in records]
    rows = prompt_rows(task, records, pool=records, shots=shots, chat=chat)
    return [{"prompt": row["prompt"], "completion": reference} for row, reference in zip(rows, references)]


def _spell_with_hyphens(parser: argparse.ArgumentParser) -> None:
    """Show every option with hyphens; the parser still accepts underscores."""
    for action in parser._actions:
        spelled = [option for option in action.option_strings if "_" not in option]
        action.option_strings = spelled[:1] if spelled and action.dest != "help" else action.option_strings


def _by_destination(found: dict[str, Any], parser: argparse.ArgumentParser) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a file by the parser's destination, and the unknown names."""
    known = {option: action.dest for action in parser._actions for option in action.option_strings}
    named = {f"--{name}".replace("_", "-"): (name, value) for name, value in found.items()}
    unknown = sorted(name for option, (name, _) in named.items() if option not in known)
    return {known[option]: value for option, (_, value) in named.items() if option in known}, unknown


def _read_config(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ValueError(f"--config: the file {path} does not exist.")
    found = yaml.safe_load(Path(path).read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a mapping from option to value.")
    return found
