"""What a head sees of two laws, and what it makes of all that it sees. Needs torch only."""

import torch
import torch.nn.functional as F


NUM_DISTRIBUTION_FEATURES = 8
TOTAL_VARIATION = 4  # its place among them
_IMPLAUSIBLE = 0.01
_LEAST_MASS = 1e-3
_MAX_LOG_RATIO = 20.0


def head_logit(
    values: torch.Tensor,
    mean: torch.Tensor,
    std: torch.Tensor,
    out_weight: torch.Tensor,
    out_bias: torch.Tensor,
    dense_weight: torch.Tensor | None = None,
    dense_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """The logit of the weight on the target: linear in the standardised inputs, or through one layer of GELU units.

    Args:
        values: float32 `[..., D]`. mean, std: `[D]`. out_weight: `[1, D]`, or `[1, H]` behind `dense_weight` `[H, D]`.

    Returns:
        float32 `[...]`; parameters of any float dtype are computed with in float32.
    """
    values = (values - mean.float()) / std.float()
    if dense_weight is not None and dense_bias is not None:
        values = F.gelu(F.linear(values, dense_weight.float(), dense_bias.float()))
    return F.linear(values, out_weight.float(), out_bias.float()).squeeze(-1)


def distribution_features(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Eight figures on two laws: both entropies (nats), both top probabilities, TV(p, q), KL(p || q), same argmax or
    not, and the draft's mass on tokens that are implausible to the target (p below 1%): what a permissive weight would
    let in, where TV also counts mere preferences among plausible tokens.

    KL is bounded by cutting log(p / q) at 20 nats, so truncated supports stay finite; it enters as log(1 + KL), the
    implausible mass as its log above 1e-3.

    Args:
        p, q: float32 `[..., V]`, the processed laws.

    Returns:
        float32 `[..., 8]`.
    """
    tiny = torch.finfo(p.dtype).tiny
    log_p, log_q = p.clamp_min(tiny).log(), q.clamp_min(tiny).log()
    kl = (p * (log_p - log_q).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)).sum(-1).clamp_min(0.0)
    top_p, best_p = p.max(-1)
    top_q, best_q = q.max(-1)
    figures = (
        -(p * log_p).sum(-1),
        -(q * log_q).sum(-1),
        top_p,
        top_q,
        torch.clamp(p - q, min=0.0).sum(-1),
        torch.log1p(kl),
        (best_p == best_q).float(),
        (torch.where(p < _IMPLAUSIBLE, q, 0.0).sum(-1) + _LEAST_MASS).log(),
    )
    return torch.stack(figures, dim=-1)
