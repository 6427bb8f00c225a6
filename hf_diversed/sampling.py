"""Accept, residual and bonus: the arithmetic of speculative sampling on plain tensors.

Knows nothing of models, caches or tokenizers. Randomness is an argument everywhere, so that every law can be
enumerated.
Letters: B batch, G drafted positions, V vocabulary. Probabilities are float32.
"""

from dataclasses import dataclass

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


def draw_noise(law: torch.Tensor) -> torch.Tensor:
    """The random numbers that `draw` needs for a law `[B, V]`.

    A single row gets V of them, as `torch.multinomial` does, so that one seed gives upstream's tokens; more rows get
    one each, which is some thirty times cheaper.
    """
    if law.shape[0] == 1:
        return torch.empty_like(law).exponential_()
    return torch.rand(law.shape[0], 1, device=law.device, dtype=law.dtype)


@dataclass(frozen=True)
class RoundNoise:
    """Random numbers that one round uses; all None when greedy.

    Attributes:
        uniforms: float32 `[B, G]` in [0, 1), one per draft; None without drafts. noise: of the next token, see `draw`.
    """

    uniforms: torch.Tensor | None = None
    noise: torch.Tensor | None = None


class RandomSource:
    """Draws random numbers from torch's global generator, at batch size 1 in upstream's order and shapes."""

    def draft_noise(self, scores: torch.Tensor) -> torch.Tensor:
        """Noise that draws one draft token per row; `scores` `[B, V]` gives shape, dtype and device only."""
        return draw_noise(scores)

    def round_noise(self, scores: torch.Tensor) -> RoundNoise:
        """Random numbers of one round, for the target's `scores`, `[B, G + 1, V]`."""
        num_drafts = scores.shape[1] - 1
        uniforms = torch.rand(len(scores), num_drafts, device=scores.device) if num_drafts else None
        return RoundNoise(uniforms, draw_noise(scores[:, 0]))


def draw(law: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """Draw one token per row from an unnormalised law, or take its argmax.

    Args:
        law: float `[B, V]`, non-negative.
        noise: float `[B, V]`, independent Exp(1) draws, for a race that the smallest `noise / law` wins; or float
            `[B, 1]` in [0, 1), for inversion of the cumulated law; or None for the argmax.

    Returns:
        long `[B]`. A token of probability 0 is never drawn.
    """
    if noise is None:
        return law.argmax(dim=-1)
    if noise.shape == law.shape:
        return (law / noise).argmax(dim=-1)
    cumulated = law.cumsum(dim=-1)
    # In (0, total]: the first entry that reaches it has mass of its own, and there always is one.
    reached = torch.searchsorted(cumulated, (1.0 - noise) * cumulated[:, -1:])
    return reached.squeeze(-1).clamp_max(law.shape[-1] - 1)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """`TV(p, q) = sum(max(p - q, 0))` over the last axis, for two probability laws `[..., V]`."""
    return torch.clamp(p - q, min=0.0).sum(dim=-1)


def first_true(flags: torch.Tensor) -> torch.Tensor:
    """Index of the first True along the last axis of a bool `[B, N]`; N where there is none. Returns long `[B]`."""
    return (~flags).long().cumprod(dim=-1).sum(dim=-1)
