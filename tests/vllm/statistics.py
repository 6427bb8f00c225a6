"""Tests of hypotheses, for what an engine drew."""

import torch


FALSE_ALARM = 1e-4  # the probability with which a right law fails one of these tests


def p_value(counts: torch.Tensor, law: torch.Tensor) -> float:
    """Of Pearson's chi-square, with tokens of few expected counts taken together; what cannot come out must not.

    Args:
        counts, law: float64 `[V]`.
    """
    assert counts[law < 1e-12].sum() == 0
    expected = law * counts.sum()
    rare = expected < 5.0
    counts, expected = (torch.cat([x[~rare], x[rare].sum(0, keepdim=True)]) for x in (counts, expected))
    counts, expected = counts[expected > 0.0], expected[expected > 0.0]
    if len(expected) < 2:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2.0))
