"""Accept, residual and bonus: the arithmetic of speculative sampling on plain tensors.

Knows nothing of models, caches or tokenizers. Randomness is an argument everywhere, so that every law can be
enumerated.
Letters: B batch, G drafted positions, V vocabulary. Probabilities are float32.
"""

import torch


def acceptance(p: torch.Tensor, q: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Probability of keeping a token drawn from `q` when verifying against `v = weight * p + (1 - weight) * q`.

    Equals `min(1, v / q)`, written as `1 - weight + weight * p / q` so that no vocabulary-sized `v` is built
    (arXiv 2604.07622; `weight = 1` is arXiv 2211.17192, algorithm 1).

    Args:
        p: float, any shape. Target probability of the drafted token.
        q: float, same shape. Draft probability of the drafted token.
        weight: float or tensor that broadcasts, in [0, 1]. Weight on the target.
    """
    # A denormal q overflows p / q, and 0 * inf is nan: the ratio is bounded, and weight 0 keeps the token whatever q
    # is.
    ratio = p / q.clamp_min(torch.finfo(q.dtype).tiny)
    return torch.clamp(1.0 - weight + weight * ratio, max=1.0)


def residual(v: torch.Tensor, q: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """Unnormalised law of the token that replaces the first rejected draft: `max(v - q, 0)`.

    Where `v` and `q` agree to rounding nothing is left over, and `fallback` takes its place.

    Args:
        v: float `[..., V]`, the verification law. `q`: float `[..., V]`, the draft's law.
        fallback: float `[..., V]`, usually the target's law.
    """
    left = torch.clamp(v - q, min=0.0)
    return torch.where(left.sum(-1, keepdim=True) > torch.finfo(left.dtype).tiny, left, fallback)


def count_accepted(accept_prob: torch.Tensor, uniforms: torch.Tensor, num_drafted: torch.Tensor) -> torch.Tensor:
    """Length of the accepted prefix of every row.

    Args:
        accept_prob: float `[B, G]`. `uniforms`: float `[B, G]` in [0, 1).
        num_drafted: long `[B]`; positions from there on are never accepted.

    Returns:
        long `[B]`, between 0 and `num_drafted`.
    """
    positions = torch.arange(accept_prob.shape[1], device=accept_prob.device)
    # Strict: a uniform of exactly 0 must not accept a token of probability 0.
    kept = (uniforms < accept_prob) & (positions < num_drafted[:, None])
    return kept.long().cumprod(dim=-1).sum(dim=-1)


def draw(law: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """Draw one token per row from an unnormalised law, or take its argmax.

    Args:
        law: float `[B, V]`, non-negative.
        noise: float `[B, V]`, independent Exp(1) draws, or None for the argmax. Dividing by exponential noise is what
            `torch.multinomial` does for a single sample, so the same generator state gives the same token.

    Returns:
        long `[B]`.
    """
    return law.argmax(dim=-1) if noise is None else (law / noise).argmax(dim=-1)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """`TV(p, q) = sum(max(p - q, 0))` over the last axis, for two probability laws `[..., V]`."""
    return torch.clamp(p - q, min=0.0).sum(dim=-1)


def first_true(flags: torch.Tensor) -> torch.Tensor:
    """Index of the first True along the last axis of a bool `[B, N]`; N where there is none. Returns long `[B]`."""
    return (~flags).long().cumprod(dim=-1).sum(dim=-1)
