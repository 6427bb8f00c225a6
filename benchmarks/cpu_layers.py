"""Faster layers for models on a CPU, with results that are equal up to rounding."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


MAX_BLOCK = 16  # query positions


def pack_linear_layers(model: torch.nn.Module) -> None:
    """Store the weights of linear layers on the CPU in oneDNN's blocked layout.

    The layers are those in float32, and in bfloat16 where the CPU has instructions for it. Forward passes are faster
    and give the same results up to rounding, but cannot be compiled. The weights must not change afterwards.
    """
    dtypes = {torch.float32} | ({torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set())
    # A function of this file would count as user code, and finished rows would stay in the batch.
    operation = partial(torch.ops.mkldnn._linear_pointwise, attr="none", scalars=[], algorithm="")
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and layer.weight.dtype in dtypes and layer.weight.is_cpu:
            bias = None if layer.bias is None else layer.bias.detach()
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 8)
            layer.forward = partial(operation, W=weight, B=bias)


@contextmanager
def grouped_queries() -> Iterator[None]:
    """Use `grouped_query_attention` in place of upstream's function inside the `with` statement."""
    AttentionInterface.register("sdpa", grouped_query_attention)
    try:
        yield
    finally:
        AttentionInterface.register("sdpa", sdpa_attention_forward)


def grouped_query_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a draft block of Qwen2 without a copy of keys and values for every query head.

    The query heads of a group become further query positions of their key head. On CPUs this is faster, as upstream
    avoids the copy only for a single query position. Results are the same up to rounding.
    """
    rows, heads, length, width = query.shape
    key_heads = key.shape[1]
    is_block = 1 < length <= MAX_BLOCK
    if attention_mask is None or attention_mask.shape[1] > 1 or not is_block or heads == key_heads:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    groups = heads // key_heads
    states = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows, key_heads, groups * length, width),
        key,
        value,
        attn_mask=attention_mask.repeat(1, 1, groups, 1),
        scale=scaling,
    )
    return states.reshape(rows, heads, length, width).transpose(1, 2).contiguous(), None
