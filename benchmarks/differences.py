"""Differences between methods of an evaluation, on the same prompts."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from hf_diversed.evaluation import Bootstrap, Results
from hf_diversed.evaluation.summary import MethodTable, z_score


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
        raise ValueError(f"{len(missing)} calls are missing; run `evaluate` until all ranks are done.")
    tables = {name: MethodTable(results, name) for name in labels}
    bootstrap = Bootstrap(results.header["n"], seed=results.header["settings"]["seed"])
    record: dict = {"method": ", ".join(sides[0]), "minus": ", ".join(sides[1])}
    drafted = all(np.any(table.sums.get("num_drafted", 0)) for table in tables.values())
    figures = [("quality", "score", "rows")]
    if drafted:
        figures = [("acceptance_rate", "num_accepted", "num_drafted"), *figures, ("mean_rounds", "num_rounds", "rows")]
    for figure, above, below in figures:
        sums = [
            [np.sum([tables[key].sums[name] for key in side], axis=0) for name in (above, below)] for side in sides
        ]
        first, second = (bootstrap.ratio(*terms) for terms in sums)
        is_count = figure == "mean_rounds"  # not a mean of values in [0, 1]
        difference = bootstrap.estimate(first - second) if is_count else bootstrap.estimate_difference(*sums)
        score = z_score(first - second) if np.ptp(first - second) else None
        record[figure] = difference.value
        record[f"{figure}_ci"] = None if np.isnan(difference.low) else [difference.low, difference.high]
        record[f"{figure}_p"] = None if score is None else 2.0 * (1.0 - NormalDist().cdf(abs(score)))
    return record
