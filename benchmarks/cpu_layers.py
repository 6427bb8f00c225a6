"""Faster layers for models on a CPU, with results that are equal up to rounding."""

from functools import partial

import torch


def has_bfloat16_instructions() -> bool:
    """Return whether this CPU has instructions for bfloat16."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linear_layers(model: torch.nn.Module) -> None:
    """Store the weights of linear layers on the CPU in oneDNN's blocked layout.

    The layers are those in float32, and in bfloat16 where the CPU has instructions for it. Forward passes are faster
    and give the same results up to rounding, but cannot be compiled. The weights must not change afterwards.
    """
    dtypes = {torch.float32} | ({torch.bfloat16} if has_bfloat16_instructions() else set())
    # A function of this file would count as user code, and finished rows would stay in the batch.
    operation = partial(torch.ops.mkldnn._linear_pointwise, attr="none", scalars=[], algorithm="")
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.weight.dtype in dtypes and layer.weight.is_cpu:
            bias = None if layer.bias is None else layer.bias.detach()
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 8)
            layer.forward = partial(operation, W=weight, B=bias)
