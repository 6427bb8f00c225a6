"""Families of methods that differ in one parameter: the points of a quality-acceptance frontier."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from hf_diversed.formatting import LOSSLESS, PLAIN
from hf_diversed.method_names import DIVERSED, MethodName


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


def expand(families: Sequence[str]) -> list[str]:
    """Return the methods of families, for `build_methods`, with "target" and "lossless" before them.

    Args:
        families: names in `FAMILIES` ("spec_cascade" is its token_v3), with values appended, or the default values:
            "static", "static:0.3:0.7", "diversed:0.25:0.5:0.75", "spec_cascade:opt:0:0.1".

    Raises:
        ValueError: for unknown families, values that are not numbers, and duplicate families or values.
    """
    methods = [PLAIN, LOSSLESS]
    for text in families:
        family, values = _parse(text)
        mark = "@" if family == DIVERSED else ":"
        methods += [f"{family}{mark}{value:g}" for value in values]
    twice = sorted({method for method in methods if methods.count(method) > 1})
    if twice:
        raise ValueError(f"a sweep must not contain a point twice, got {', '.join(twice)} more than once.")
    if len(methods) == 2:
        raise ValueError(f"`families` must name at least one family, got none; known families: {', '.join(FAMILIES)}.")
    return methods


def _parse(text: str) -> tuple[str, tuple[float, ...]]:
    """Return the name and the values of one family."""
    parsed = MethodName.parse(text.strip())
    kinds = [*takewhile(lambda value: isinstance(value, str), parsed.values)]
    name = str(replace(parsed, parameters=":".join(map(str, kinds)) if kinds else None))
    family = _SHORT.get(name, name)
    if family not in FAMILIES:
        raise ValueError(
            f"unknown family {name!r} in {text!r}; known families: {', '.join([*FAMILIES, *_SHORT])}, with values as "
            "in static:0.3:0.7."
        )
    given = parsed.values[len(kinds) :]
    values = tuple(value for value in given if isinstance(value, float))
    if len(values) < len(given):
        raise ValueError(f"values of a family must be numbers, got {text!r}; for example {family}:0.3:0.7.")
    return family, values or FAMILIES[family]
