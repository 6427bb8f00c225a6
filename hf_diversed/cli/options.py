"""What the training commands share: dataclasses as options with a YAML file behind them, and rows of a task."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser

from hf_diversed.tasks.base import Task
from hf_diversed.tasks.loading import load_records
from hf_diversed.tasks.rows import prompt_rows


def parse_options(classes: Iterable[type], argv: list[str], prog: str, **defaults: Any) -> tuple:
    """Read dataclasses from the command line; `--config run.yaml` gives defaults in their names, and the command line
    wins.

    Args:
        defaults: other than those of the dataclasses.

    Raises:
        ValueError: for an option in the file that does not exist.
    """
    parser = HfArgumentParser(tuple(classes), prog=prog)
    parser.add_argument("--config", help="YAML file with any of these options.")
    parser.set_defaults(**defaults)
    first = argparse.ArgumentParser(prog=prog, add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    path = first.parse_known_args(argv)[0].config
    if path is not None:
        found = _read_config(path)
        if unknown := sorted(set(found) - {action.dest for action in parser._actions}):
            raise ValueError(f"the config names options that do not exist: {', '.join(unknown)}; see --help.")
        parser.set_defaults(**found)
        for action in parser._actions:
            action.required = action.required and action.dest not in found
    *parsed, _ = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    return tuple(parsed)


def check_pair(target: str | None, draft: str | None) -> None:
    if (target is None) != (draft is None):
        raise ValueError("--target and --draft go together: pass both, or neither for the embedded pair.")


def read_records(task: Task, split: str, n: int, seed: int, data_file: str | None) -> list[dict[str, Any]]:
    """`n` records of a split, or of a file; all of a smaller file."""
    if data_file is not None:
        n = min(n, len(load_records(task, split, None, data_file=data_file)))
    return load_records(task, split, n, seed, data_file)


def supervised_rows(task: Task, records: list[dict[str, Any]], shots: int, chat: bool) -> list[dict[str, Any]]:
    """Rows with "prompt" and "completion", the reference; solved examples come from the other records."""
    references = [task.chat_turn(record)[1] if chat else task.reference(record) for record in records]
    rows = prompt_rows(task, records, pool=records, shots=shots, chat=chat)
    return [{"prompt": row["prompt"], "completion": reference} for row, reference in zip(rows, references)]


def _read_config(path: str) -> dict[str, Any]:
    found = yaml.safe_load(Path(path).read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a mapping from option to value.")
    return found
