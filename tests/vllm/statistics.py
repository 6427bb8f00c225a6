"""Two distributions, and hypothesis tests of the tokens that an engine drew from them."""

import torch


VOCAB = 8
FALSE_ALARM = 1e-4  # probability that a test fails for a correct distribution


def distributions() -> tuple[torch.Tensor, torch.Tensor]:
    """Return target logits and draft probabilities, float32 `[V]`, which differ much."""
    generator = torch.Generator().manual_seed(5)
    target, draft = 1.5 * torch.randn(2, VOCAB, generator=generator)
    return target, draft.softmax(-1)


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
