"""Curves of evaluation records, for figures and tables. Independent of matplotlib.

A curve contains the records of one file for one task, temperature and gamma; points of different runs are
never joined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_diversed.evaluation.frontier import STATIC
from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.method_names import MethodName


Record = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """The records of one setting.

    Attributes:
        plain: decoding with the target alone; None if it was not measured.
        families: records by family, each in the order of its parameter. The static one ends in lossless decoding.
    """

    task: str
    temperature: float
    num_assistant_tokens: int
    plain: Record | None
    families: Mapping[str, Sequence[Record]]


def to_curves(records: Sequence[Record], source: str) -> list[Curve]:
    """Group the records of one file by task, temperature and gamma.

    Raises:
        ValueError: if a group contains a method twice. A difference such as another draft model is not a curve.
    """
    groups: dict[tuple[str, float, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["task"], record["temperature"], record["num_assistant_tokens"]), []).append(record)
    for (task, temperature, gamma), members in groups.items():
        methods = [record["method"] for record in members]
        if twice := sorted({method for method in methods if methods.count(method) > 1}):
            raise ValueError(
                f"{source} holds {', '.join(twice)} more than once for {task} at temperature {temperature:g} and "
                f"{gamma} draft tokens per round: a curve has one point of each. Use separate files for other "
                "settings."
            )
    return [Curve(*setting, *_families(members)) for setting, members in groups.items()]


def parameter(record: Record) -> float | None:
    """Return the parameter of a point within its family, 1 for lossless decoding; None without one."""
    family, value = MethodName.parse(record["method"]).family
    return 1.0 if family == LOSSLESS else value


def _families(records: Sequence[Record]) -> tuple[Record | None, dict[str, list[Record]]]:
    plain: Record | None = None
    families: dict[str, list[Record]] = {}
    for record in records:
        family, _ = MethodName.parse(record["method"]).family
        if family == PLAIN:
            plain = record
        elif record["acceptance_rate"] is not None:  # None where nothing was drafted
            families.setdefault(STATIC if family == LOSSLESS else family, []).append(record)
    for members in families.values():
        members.sort(key=lambda record: parameter(record) or 0.0)
    return plain, families
