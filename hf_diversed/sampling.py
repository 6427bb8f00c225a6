"""The arithmetic of speculative sampling on plain tensors: acceptance, residual and bonus tokens.

Independent of models, caches and tokenizers. Random numbers are arguments, so tests can enumerate distributions.
Letters: B batch, G drafted positions, V vocabulary. Probabilities are float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Use `seed` in the block; restore the random state of the CPU and the device afterwards."""
    # By default torch saves the state of every GPU, which creates a context on each.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def acceptance(p: torch.Tensor, q: torch.Tensor, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Return the probability of accepting a token drawn from `q` under `v = weight * p + (1 - weight) * q`.

    Equals `min(1, v / q)`, written as `1 - weight + weight * p / q` so that no vocabulary-sized `v` is built
    (arXiv 2604.07622; `weight = 1` is arXiv 2211.17192, algorithm 1).

    Args:
        p: float, any shape. Target probability of the draft token.
        q: float, same shape. Draft probability of the draft token.
        weight: float or tensor that broadcasts, in [0, 1]. Weight on the target.
    """
    # A denormal q overflows p / q, and 0 * inf is NaN; a bounded ratio accepts with probability 1 at weight 0.
    ratio = p / q.clamp_min(torch.finfo(q.dtype).tiny)
    return torch.clamp(1.0 - weight + weight * ratio, max=1.0)


def residual(v: torch.Tensor, q: torch.Tensor, fallback: torch.Tensor) -> torch.Tensor:
    """Return the unnormalised distribution of the residual token: `max(v - q, 0)`, or `fallback` where that is 0.

    Args:
        v: float `[..., V]`, the emitted distribution. q: float `[..., V]`, the draft distribution.
        fallback: float `[..., V]`, usually the target distribution.
    """
    excess = torch.clamp(v - q, min=0.0)
    return torch.where(excess.sum(-1, keepdim=True) > torch.finfo(excess.dtype).tiny, excess, fallback)


def count_accepted(accept_prob: torch.Tensor, uniforms: torch.Tensor, num_drafted: torch.Tensor) -> torch.Tensor:
    """Return the length of the accepted prefix of every row.

    Args:
        accept_prob: float `[B, G]`. `uniforms`: float `[B, G]` in [0, 1).
        num_drafted: long `[B]`; later positions are never accepted.

    Returns:
        long `[B]`, between 0 and `num_drafted`.
    """
    positions = torch.arange(accept_prob.shape[1], device=accept_prob.device)
    # Strict: a uniform of exactly 0 must not accept a token of probability 0.
    kept = (uniforms < accept_prob) & (positions < num_drafted[:, None])
    return kept.long().cumprod(dim=-1).sum(dim=-1)


def draw_noise(probs: torch.Tensor) -> torch.Tensor:
    """Return the random numbers that `draw` needs for a distribution `[B, V]`.

    A single row gets V numbers, as in `torch.multinomial`, so that a seed gives the tokens of transformers. Each of
    several rows gets one number, which is about thirty times cheaper. It is float64 where possible: float32 has only
    2**24 such numbers, so tokens of small probability would be drawn too often or never.
    """
    if probs.shape[0] == 1:
        return torch.empty_like(probs).exponential_()
    dtype = torch.float64 if probs.device.type in ("cpu", "cuda") else torch.float32  # others may lack float64
    return torch.rand(probs.shape[0], 1, device=probs.device, dtype=dtype)


@dataclass(frozen=True)
class RoundNoise:
    """Random numbers that one round uses; all None when greedy.

    Attributes:
        uniforms: float32 `[B, G]` in [0, 1), one per draft token; None without any.
        noise: random numbers for the residual or bonus token, see `draw`.
    """

    uniforms: torch.Tensor | None = None
    noise: torch.Tensor | None = None


class RandomSource:
    """Draws random numbers from torch's global generator; at batch size 1 in the order and shapes of transformers."""

    def draft_noise(self, scores: torch.Tensor) -> torch.Tensor:
        """Return noise for drawing one draft token per row; `scores` `[B, V]` gives shape, dtype and device only."""
        return draw_noise(scores)

    def round_noise(self, scores: torch.Tensor) -> RoundNoise:
        """Return the random numbers of one round for the target's `scores`, `[B, G + 1, V]`."""
        gamma = scores.shape[1] - 1
        shape = len(scores), gamma
        uniforms = torch.rand(shape, dtype=torch.float32, device=scores.device) if gamma else None
        return RoundNoise(uniforms, draw_noise(scores[:, 0]))


def draw(probs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """Draw one token per row from an unnormalised distribution, or return its argmax.

    Args:
        probs: float `[B, V]`, non-negative.
        noise: float `[B, V]`, independent Exp(1) draws: the token with the smallest `noise / probs` is drawn; or float
            `[B, 1]` in [0, 1), for inversion of the cumulative distribution in its dtype; or None for the argmax.

    Returns:
        long `[B]`. A token of probability 0 is never drawn.
    """
    if noise is None:
        return probs.argmax(dim=-1)
    if noise.shape == probs.shape:
        return (probs / noise).argmax(dim=-1)
    cumulated = probs.cumsum(dim=-1, dtype=noise.dtype)
    # The value is in (0, total], so the first entry that reaches it exists, unless a probability is NaN.
    reached = torch.searchsorted(cumulated, (1.0 - noise) * cumulated[:, -1:]).clamp_max(probs.shape[-1] - 1)
    # A sum that is computed in parallel may increase by rounding at a token of probability 0.
    return torch.where(probs.gather(-1, reached) > 0, reached, probs.argmax(dim=-1, keepdim=True)).squeeze(-1)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return TV(p, q) = sum(max(p - q, 0)) over the last axis: `[...]` from `[..., V]`."""
    return torch.clamp(p - q, min=0.0).sum(dim=-1)
