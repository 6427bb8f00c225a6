"""`benchmarks/cpu_layers.py`: the layers compute the same, and finished rows can leave the batch."""

import pytest
import torch

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
