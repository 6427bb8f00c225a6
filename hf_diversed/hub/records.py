"""What is known about a head besides its weights: how it was measured and trained. Read from a folder or the Hub."""

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
    """What is said about a head where it is published.

    Attributes:
        evaluation: what `hf-diversed evaluate --output` writes; {} if it was not measured.
        training: what the trainer writes beside the head, provenance.json; {} if nobody knows.
        tags: of the Hub, besides those of every head. license: as the Hub spells it.
    """

    evaluation: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    license: str = LICENSE


def read_records(name: str | Path, evaluation: str | Path | None = None, **hub: Any) -> HeadRecords:
    """Read the records that lie beside a head; what is not there is empty.

    Args:
        name: folder or Hub id. evaluation: file to read in place of the folder's evaluation.json.
        hub: `revision`, `token` and the like, as in `from_pretrained`.

    Raises:
        OSError: if the folder cannot be read. ValueError: if a file is no JSON object.
    """
    folder = find_files(name, (EVALUATION, TRAINING), **hub)
    if evaluation is None and (folder / EVALUATION).is_file():
        evaluation = folder / EVALUATION
    training = folder / TRAINING if (folder / TRAINING).is_file() else None
    return HeadRecords(read_json(evaluation), read_json(training))


def read_json(given: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any]:
    """A record as given, or from its file; {} for None. Raises ValueError if it is no JSON object."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    try:
        found = json.loads(Path(given).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{given} is no JSON, or nested too deep: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{given} must hold a JSON object, got {type(found).__name__}.")
    return found
