"""What stock rejection sampling does with given logits, in a few lines of torch, for enumeration."""

import torch


def judge(target_logits: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Chance to keep token x and the law that replaces it, where row x of N was drafted from `q`.

    As engines do it (vLLM: `v1/sample/rejection_sampler.py`): the softmax in float32, then p(x) / q(x) and
    norm(max(p - q, 0)).

    Args:
        target_logits: float32 `[..., V, V]`, row x for draft x. q: float32, of that shape.

    Returns:
        float64 `[..., V]` and `[..., V, V]`.
    """
    p = target_logits.softmax(-1, dtype=torch.float32)
    of_p, of_q = (law.diagonal(dim1=-2, dim2=-1) for law in (p, q))
    kept = torch.where(of_q > 0.0, (of_p / of_q).double().clamp_max(1.0), 0.0)
    left = (p - q).clamp_min(0.0).double()
    return kept, left / left.sum(-1, keepdim=True).clamp_min(1e-300)


def emitted(kept: torch.Tensor, replacement: torch.Tensor, drafts: torch.Tensor) -> torch.Tensor:
    """The law of the token that comes out, `[..., V]`, if x is drafted with `drafts`, `[..., V]`, in float64."""
    rejected = drafts * (1.0 - kept)
    return drafts * kept + torch.einsum("...x,...xv->...v", rejected, replacement)
