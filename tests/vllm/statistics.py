"""Hypothesis tests of the tokens that an engine drew."""

import torch


FALSE_ALARM = 1e-4  # probability that a test fails for a correct distribution


def p_value(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Return the p-value of Pearson's chi-square test; rare tokens are pooled, and impossible ones must not occur.

    Args:
        counts, probs: float64 `[V]`.
    """
    assert counts[probs < 1e-12].sum() == 0
    expected = probs * counts.sum()
    rare = expected < 5.0
    counts, expected = (torch.cat([x[~rare], x[rare].sum(0, keepdim=True)]) for x in (counts, expected))
    counts, expected = counts[expected > 0.0], expected[expected > 0.0]
    if len(expected) < 2:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(expected) - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2.0))
