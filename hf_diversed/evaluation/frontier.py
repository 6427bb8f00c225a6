"""Sweep the parameter of verifier families on one task: the points of a quality-acceptance front."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_diversed.evaluation.calls import Task
from hf_diversed.evaluation.evaluate import REPORT
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.evaluation.sweep import sweep
from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.generation.planning import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.running.files import write_json
from hf_diversed.running.methods import DIVERSED, HeadLike, MethodName, parse_number
from hf_diversed.running.pair import Pair


FRONTIER = "frontier.json"
STATIC = "static"

# Default parameter values of each family. Lossless decoding is the strict end of every curve.
FAMILIES: dict[str, tuple[float, ...]] = {
    STATIC: (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "lenience": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7),
    "spec_cascade:chow": (0.05, 0.1, 0.2, 0.4, 0.6, 0.8),
    "spec_cascade:diff": (-0.2, -0.1, 0.0, 0.1, 0.2, 0.4),
    "spec_cascade:opt": (-0.2, -0.1, 0.0, 0.1, 0.25, 0.5),
    "spec_cascade:token_v1": (0.1, 0.3, 0.5, 0.7, 0.9),
    "spec_cascade:token_v2": (0.1, 0.3, 0.5, 0.7, 0.9),
    "spec_cascade:token_v3": (0.1, 0.35, 0.5, 0.65, 0.8, 0.95),
    DIVERSED: (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
}
_SHORT = {"spec_cascade": "spec_cascade:token_v3"}


def expand(rules: Sequence[str]) -> list[str]:
    """Expand families into methods of `build_methods`, "target" and "lossless" before them.

    Args:
        rules: names in `FAMILIES` ("spec_cascade" is its token_v3), with values appended, or the default values:
            "static", "static:0.3:0.7", "diversed:0.25:0.5:0.75", "spec_cascade:opt:0:0.1".

    Raises:
        ValueError: for unknown families, values that are not numbers, and duplicate families or values.
    """
    methods = [PLAIN, LOSSLESS]
    for rule in rules:
        family, values = _parse(rule)
        mark = "@" if family == DIVERSED else ":"
        methods += [f"{family}{mark}{value:g}" for value in values]
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise ValueError(f"`rules` must not sweep a point twice, got {', '.join(twice)} more than once.")
    if len(methods) == 2:
        raise ValueError(f"`rules` must name at least one family, got none; known are {', '.join(FAMILIES)}.")
    return methods


def with_families(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the records, each with `family` and `parameter` added."""
    families = [MethodName.parse(record["method"]).family for record in records]
    return [{**record, "family": name, "parameter": value} for record, (name, value) in zip(records, families)]


def frontier(
    pair: Pair,
    task: Task,
    examples: Sequence[Mapping[str, Any]],
    rules: Sequence[str],
    settings: EvaluationSettings | None = None,
    *,
    num_assistant_tokens: Sequence[int] = (DEFAULT_NUM_ASSISTANT_TOKENS,),
    head: HeadLike | None = None,
    output: Path | str | None = None,
) -> list[dict]:
    """Sweep verifier families; every point is a method of one `evaluate`, so all share prompts and seeds.

    Args:
        rules: see `expand`. The other arguments are those of `evaluate`.
        num_assistant_tokens: draft lengths, instead of that of the settings. All families run at 5, or at the first
            length if 5 is not among them; the other lengths are for the static curve only.
        output: a folder, with one evaluation folder per draft length. When all calls are finished, `frontier.json`
            is written there: {"records": [...], "provenance": {...}}.

    Returns:
        The records of `evaluate`, each with `family` and `parameter`; empty while other processes have unfinished
        calls.

    Raises:
        ValueError: as in `expand` and `evaluate`, for duplicate draft lengths, or without draft lengths.
    """
    methods, lengths = expand(rules), list(num_assistant_tokens)
    if not lengths or len(set(lengths)) < len(lengths):
        raise ValueError(f"`num_assistant_tokens` must hold different draft lengths, got {lengths}.")
    main = DEFAULT_NUM_ASSISTANT_TOKENS if DEFAULT_NUM_ASSISTANT_TOKENS in lengths else lengths[0]
    static = [method for method in methods if MethodName.parse(method).family[0] in (PLAIN, LOSSLESS, STATIC)]
    parts = [
        (
            methods if length == main else static,
            replace(settings or EvaluationSettings(), num_assistant_tokens=length),
            None if output is None else Path(output) / f"gamma-{length}",
        )
        for length in sorted(lengths, key=lambda length: length != main)
    ]
    records = with_families(sweep(pair, task, examples, parts, head=head))
    if records and output is not None:
        source = json.loads((Path(output) / f"gamma-{main}" / REPORT).read_text(encoding="utf-8"))["provenance"]
        write_json(Path(output) / FRONTIER, {"records": records, "provenance": source})
    return records


def _parse(rule: str) -> tuple[str, tuple[float, ...]]:
    """Return family and values of one entry of `rules`."""
    words = rule.strip().split(":")
    count = next((place for place, word in enumerate(words) if parse_number(word) is not None), len(words))
    name = ":".join(words[:count])
    family = _SHORT.get(name, name)
    if family not in FAMILIES:
        raise ValueError(
            f"unknown family {name!r} in {rule!r}; known are {', '.join([*FAMILIES, *_SHORT])}, with values as in "
            "static:0.3:0.7."
        )
    values = [parse_number(word) for word in words[count:]]
    if None in values:
        raise ValueError(f"values of a family must be numbers, got {rule!r}; for example {family}:0.3:0.7.")
    return family, tuple(value for value in values if value is not None) or FAMILIES[family]
