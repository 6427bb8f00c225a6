"""Records of a head's evaluation and training, read from a folder or the Hub."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_diversed.head.pulling import find_files


EVALUATION, TRAINING = "evaluation.json", "provenance.json"
LICENSE = "apache-2.0"


@dataclass(frozen=True)
class HeadRecords:
    """What is published with a head.

    Attributes:
        evaluation: the output of `hf-diversed evaluate --output`; {} if the head was not evaluated.
        training: the trainer's provenance.json; {} if it does not exist.
        tags: additional tags on the Hub.
        license: a license id of the Hub.
    """

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    license: str = LICENSE


def read_records(name: str | Path, evaluation: str | Path | None = None, **hub: Any) -> HeadRecords:
    """Read the records in a head's folder; missing ones are empty.

    Args:
        name: folder or Hub id.
        evaluation: file to read instead of the folder's evaluation.json.
        hub: `revision`, `token` and the like, as in `from_pretrained`.

    Raises:
        OSError: if the folder cannot be read.
        ValueError: if a file is not a JSON object.
    """
    folder = find_files(name, (EVALUATION, TRAINING), **hub)
    if evaluation is None and (folder / EVALUATION).is_file():
        evaluation = folder / EVALUATION
    training = folder / TRAINING if (folder / TRAINING).is_file() else None
    return HeadRecords(read_json(evaluation), read_json(training))


def read_json(given: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    """Return a record, or read it from its file; {} for None. Raises ValueError if it is not a JSON object."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    try:
        found = json.loads(Path(given).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{given} is not valid JSON, or nested too deeply: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{given} must hold a JSON object, got {type(found).__name__}.")
    return found
