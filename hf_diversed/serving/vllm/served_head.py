"""A head with fixed weights for serving, so that everything computed from the weights alone is computed once."""

import torch
from torch import nn

from hf_diversed.head import DiversedHead


class ServedHead(nn.Module):
    """The logits of a `DiversedHead` in 4 operations instead of 25: the first layer contains the standardization.

    Args:
        head: a head with distribution features, with or without token features. It is not changed.
    """

    slope: torch.Tensor

    def __init__(self, head: DiversedHead):
        super().__init__()
        self.config = head.config
        self.needs_hidden_states = head.needs_hidden_states
        self.needs_distributions = head.needs_distributions
        self.needs_token = head.needs_token
        first = head.out if head.dense is None else head.dense
        mean, std, weight, bias = (x.detach().double() for x in (head.input_mean, head.input_std, *first.parameters()))
        self.layers = nn.Sequential(_linear(weight / std, bias - (weight / std) @ mean))
        if head.dense is not None:
            self.layers.extend((nn.GELU(), _linear(head.out.weight.detach(), head.out.bias.detach())))
        if head.needs_token:
            self.register_buffer("slope", head.ratio_slope())
        self.requires_grad_(False)

    def forward(self, features: torch.Tensor, token: torch.Tensor | None = None) -> torch.Tensor:
        """Return float32 `[...]`. `features`: float32 `[..., 8]`; `token`: float32 `[..., 5]`. See `DiversedHead`."""
        values = features if token is None else torch.cat([features, token], dim=-1)
        return self.layers(values).squeeze(-1)

    def ratio_slope(self) -> torch.Tensor:
        return self.slope


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight.float(), "bias": bias.float()})
    return layer
