"""The Muon optimizer (Jordan et al. 2024) in float32; torch's own works in bfloat16, which many CPUs lack."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal, for the weight matrices of hidden layers.

    Args:
        params: matrices; those of one shape are updated together.
        lr: on Adam's scale, since updates are scaled to the size of Adam's (arXiv 2502.16982).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.05):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict) -> None:
        nesterov = []
        for parameter in parameters:
            velocity = self.state[parameter].setdefault("velocity", torch.zeros_like(parameter))
            gradient = parameter.grad
            assert gradient is not None
            velocity.lerp_(gradient, 1 - group["momentum"])
            nesterov.append(gradient.lerp(velocity, group["momentum"]))
        scale = 0.2 * max(parameters[0].shape) ** 0.5
        for parameter, update in zip(parameters, orthogonalize(torch.stack(nesterov)), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(update, alpha=-group["lr"] * scale)


def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Bring all singular values of float32 matrices [N, R, C] near 1 by a quintic Newton-Schulz iteration."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    x = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide is matrices else x.mT
