"""Stock rejection sampling in a few lines of torch, for enumeration."""

import torch


def verify(target_logits: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the acceptance probability of token x and the residual distribution, if row x was drafted from `q`.

    As in vLLM's `v1/sample/rejection_sampler.py`: softmax in float32, then p(x) / q(x) and norm(max(p - q, 0)).

    Args:
        target_logits: float32 `[..., V, V]`, row x for draft token x. q: float32, of that shape.

    Returns:
        float64 `[..., V]` and `[..., V, V]`.
    """
    p = target_logits.softmax(-1, dtype=torch.float32)
    of_p, of_q = (probs.diagonal(dim1=-2, dim2=-1) for probs in (p, q))
    accept_prob = torch.where(of_q > 0.0, (of_p / of_q).double().clamp_max(1.0), 0.0)
    residual = (p - q).clamp_min(0.0).double()
    return accept_prob, residual / residual.sum(-1, keepdim=True).clamp_min(1e-300)


def emitted(accept_prob: torch.Tensor, residual: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the emitted distribution, `[..., V]`, for draft probabilities `q`, `[..., V]`, in float64."""
    rejected = q * (1.0 - accept_prob)
    return q * accept_prob + torch.einsum("...x,...xv->...v", rejected, residual)
