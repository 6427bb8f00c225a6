"""Differences between methods of an evaluation, on the same prompts."""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from hf_diversed.evaluation import Bootstrap, Results
from hf_diversed.evaluation.statistics import MethodTable


def compare(results: Results, label: str | Sequence[str], other: str | Sequence[str]) -> dict:
    """Return acceptance rate, quality and rounds per completion of a method minus those of another on the same
    prompts, with 95% confidence intervals; only the quality if one of them has no draft tokens.

    Args:
        label, other: a method, or several that count as one, such as heads trained with different seeds.

    Returns:
        `method`, `minus`, and for each difference its value, `_ci`, and `_p`: two-sided p-value of the hypothesis of
        no difference, from the standard error clustered by prompt; None if no prompt differs. Where `_ci` is from
        `paired_bounds`, the two can disagree near 0.05.
    """
    sides = [[side] if isinstance(side, str) else list(side) for side in (label, other)]
    labels = dict.fromkeys([*sides[0], *sides[1]])
    if missing := results.missing(labels):
        raise ValueError(f"{len(missing)} calls are missing; run `evaluate` again to finish them.")
    tables = {name: MethodTable(results, name) for name in labels}
    bootstrap = Bootstrap(results.header["n"], seed=results.header["settings"]["seed"])
    record: dict = {"method": ", ".join(sides[0]), "minus": ", ".join(sides[1])}
    drafted = all(np.any(table.sums.get("num_drafted", 0)) for table in tables.values())
    figures = [("quality", "score", "rows")]
    if drafted:
        figures = [("acceptance_rate", "num_accepted", "num_drafted"), *figures, ("mean_rounds", "num_rounds", "rows")]
    for figure, above, below in figures:
        terms = [sums(tables, side, above, below) for side in sides]
        first, second = (bootstrap.ratio(*side) for side in terms)
        is_count = figure == "mean_rounds"  # not a mean of values in [0, 1]
        difference = bootstrap.estimate(first - second) if is_count else bootstrap.estimate_difference(*terms)
        record |= difference.record(figure)
        record[f"{figure}_p"] = p_value(first - second) if np.ptp(first - second) else None
    return record


def sums(tables: Mapping[str, MethodTable], labels: Sequence[str], *names: str) -> list[np.ndarray]:
    """Return the sums per prompt of each name, `[P]`, over methods that count as one."""
    return [np.sum([tables[label].sums[name] for label in labels], axis=0) for name in names]


def p_value(statistic: np.ndarray) -> float | None:
    """Return the two-sided p-value of the hypothesis that a statistic `[R + 1]` is 0, from its standard error; None if
    the replicates do not vary, as with one prompt."""
    if statistic[0] == 0:
        return 1.0
    error = float(np.nanstd(statistic[1:]))
    return 2.0 * (1.0 - NormalDist().cdf(abs(float(statistic[0])) / error)) if error > 0 else None
