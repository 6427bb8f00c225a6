"""Inputs of a head, computed from both distributions and a token. Needs torch only."""

from collections.abc import Iterator

import torch


NUM_DISTRIBUTION_FEATURES = 8
TOTAL_VARIATION = 4  # index of this feature
_IMPLAUSIBLE = 0.01
_LEAST_MASS = 1e-3
_MAX_LOG_RATIO = 20.0

NUM_TOKEN_FEATURES = 5
LOG_RATIO = 0  # index of this feature
_LEAST_LOG = -10.0
_LAST_RANK = 127
MAX_HELD = 2**18  # tokens, over all positions, whose features are in memory at once


def distribution_features(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return eight features of two distributions: both entropies (nats), both top probabilities, TV(p, q), KL(p || q),
    whether the argmaxes are equal, and the draft model's probability of implausible tokens (p below 1%), which a
    permissive weight would accept; TV also counts differences among plausible tokens.

    log(p / q) is clamped to [-20, 20] nats, so KL is finite for truncated supports. KL enters as log(1 + KL), and the
    implausible mass m as log(m + 1e-3).

    Args:
        p, q: float32 `[..., V]`, the processed distributions.

    Returns:
        float32 `[..., 8]`.
    """
    tiny = torch.finfo(p.dtype).tiny
    # In place: on a CPU, allocating a tensor of this size takes longer than most of these operations, and a comparison
    # with a boolean result takes three times as long.
    log_p, log_q = p.clamp_min(tiny).log_(), q.clamp_min(tiny).log_()
    buffer = (log_p - log_q).clamp_(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).mul_(p)
    kl = buffer.sum(-1).clamp_min(0.0)
    top_p, best_p = p.max(-1)
    top_q, best_q = q.max(-1)
    features = (
        -log_p.mul_(p).sum(-1),
        -log_q.mul_(q).sum(-1),
        top_p,
        top_q,
        buffer.copy_(p).sub_(q).clamp_(min=0.0).sum(-1),
        torch.log1p(kl),
        (best_p == best_q).float(),
        (buffer.copy_(p).lt_(_IMPLAUSIBLE).mul_(q).sum(-1) + _LEAST_MASS).log(),
    )
    return torch.stack(features, dim=-1)


def token_features(p: torch.Tensor, q: torch.Tensor, top: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """Return five features of a token: log p/q, log p - log max p, log p, log q and log(1 + its rank under p).

    Logarithms are natural and clamped to at least -10; log p/q is also clamped to at most 0, above which the weight
    has no effect.

    Args:
        p, q: float32 `[...]`, the token's probabilities under both models. top: float32, the highest p, broadcasts.
        rank: float or long `[...]`, number of tokens with a higher p, which callers clamp to at most 127.

    Returns:
        float32 `[..., 5]`.
    """
    log_p, log_q, log_top = (values.clamp_min(torch.finfo(p.dtype).tiny).log() for values in (p, q, top))
    features = ((log_p - log_q).clamp_max(0.0), log_p - log_top, log_p, log_q, torch.log1p(rank.to(p.dtype)))
    return torch.stack(features, dim=-1).clamp_min(_LEAST_LOG)


def drafted_token_features(p: torch.Tensor, q: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return `token_features` of one token per position: float32 `[..., 5]`.

    Args:
        p, q: float32 `[..., V]`. tokens: long `[...]`.
    """
    p_token, q_token = (probs.gather(-1, tokens[..., None]) for probs in (p, q))
    rank = p.clone().gt_(p_token).sum(-1).clamp_max(_LAST_RANK)  # in place, as in `distribution_features`
    return token_features(p_token.squeeze(-1), q_token.squeeze(-1), p.amax(-1), rank)


def vocabulary_features(p: torch.Tensor, q: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield `token_features` of every token, in chunks of C tokens of the vocabulary: float32 `[..., C, 5]`.

    All features at once would take five times the memory of a distribution, and the head's hidden layer even more.
    """
    size = max(1, MAX_HELD // p[..., 0].numel())
    likeliest = p.topk(min(_LAST_RANK, p.shape[-1]), dim=-1).values.flip(-1).contiguous()
    for p_chunk, q_chunk in zip(p.split(size, dim=-1), q.split(size, dim=-1)):
        rank = likeliest.shape[-1] - torch.searchsorted(likeliest, p_chunk.contiguous(), right=True)
        yield token_features(p_chunk, q_chunk, likeliest[..., -1:], rank)
