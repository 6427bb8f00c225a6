"""`benchmarks/cpu_layers.py`: the layers compute the same, and finished rows can leave the batch."""

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from benchmarks import cpu_layers
from hf_diversed.support import has_user_code


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_layers_compute_the_same(dtype):
    """Catches a lost bias, a transposed weight, and layers that count as code that may index rows."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 instructions, so these layers are not packed")
    layer, states = torch.nn.Linear(32, 48, dtype=dtype), torch.randn(2, 3, 32, dtype=dtype)
    model = torch.nn.Sequential(layer)
    with torch.no_grad():
        expected = layer(states)
        cpu_layers.pack_linear_layers(model)
        assert "forward" in vars(layer)
        torch.testing.assert_close(layer(states), expected)
    assert not has_user_code(model)  # otherwise finished rows would stay in the batch


@pytest.mark.parametrize(("rows", "length", "keys"), [(1, 6, 50), (5, 2, 40), (3, 1, 40), (2, 40, 40)])
@pytest.mark.parametrize("additive", [False, True])
def test_grouped_attention_computes_the_same(rows, length, keys, additive):
    """Catches query heads of one group that read another group's keys, and a mask in the wrong order."""
    query = torch.randn(rows, 6, length, 8)
    states = torch.randn(2, rows, 2, keys, 8)
    mask = torch.rand(rows, 1, length, keys) > 0.3
    mask = torch.where(mask, 0.0, -1e9) if additive else mask
    given = SimpleNamespace(num_key_value_groups=3), query, *states, mask
    expected, _ = sdpa_attention_forward(*given, scaling=0.2)
    found, _ = cpu_layers.grouped_query_attention(*given, scaling=0.2)
    torch.testing.assert_close(found, expected)
