"""The ragged cache alone: columns per row, growth, rollback by overwriting, and the masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.cache import RaggedCache


HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 3, 5


def make(batch=2, limit=64, prompt_mask=None, windows=None, layers=1):
    if isinstance(prompt_mask, list):
        prompt_mask = torch.tensor(prompt_mask, dtype=torch.bool)
    return RaggedCache(layers, limit, prompt_mask, windows)


def block(batch, length, seed=0):
    """Keys and values of different width, as in latent attention."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, HEADS, length, width, generator=generator) for width in (KEY_WIDTH, VALUE_WIDTH))


def put(cache, starts, states, layer=0):
    length = states[0].shape[2]
    columns = cache.open(torch.tensor(starts), min(starts), max(starts), length)
    return columns, cache.update(*states, layer)


def test_block_lands_in_each_rows_columns_and_nowhere_else():
    """Catches a scatter that transposes rows and columns, or overwrites other rows' columns to the right of it."""
    cache = make(batch=3)
    before = block(3, 12, seed=1)
    put(cache, [0, 0, 0], before)
    states, starts = block(3, 4, seed=2), [2, 7, 5]
    columns, seen = put(cache, starts, states)
    assert columns.tolist() == [[2, 3, 4, 5], [7, 8, 9, 10], [5, 6, 7, 8]]
    for got, old, new in zip(seen, before, states):
        expected = old.clone()
        for row, start in enumerate(starts):
            expected[row, :, start : start + 4] = new[row]
        assert torch.equal(got, expected[:, :, :11])  # up to the longest row


def test_growth_by_doubling_keeps_content():
    """Catches lost keys after growth, uninitialised memory, copies at every step, or growth past the limit."""
    cache, limit = make(limit=1100), 1100
    layer, written, capacities = cache.layers[0], [], []
    for step in range(11):
        written.append(block(2, 100, seed=step))
        _, (keys, values) = put(cache, [100 * step] * 2, written[-1])
        assert torch.equal(keys, torch.cat([k for k, _ in written], dim=2))
        assert torch.equal(values, torch.cat([v for _, v in written], dim=2))
        capacities.append(layer.keys.shape[2])
        assert layer.keys[:, :, 100 * (step + 1) :].abs().sum() == 0  # NaN propagates through a mask
    assert capacities[-1] == limit
    assert len(set(capacities)) <= 4  # 256, 512, 1024, limit


def test_writes_up_to_the_limit():
    """Catches an off-by-one error at the last column, where the last draft tokens of the longest row are written."""
    cache = make(limit=10)
    put(cache, [0, 0], block(2, 7))
    states = block(2, 4, seed=1)
    _, (keys, values) = put(cache, [3, 6], states)
    assert keys.shape[2] == values.shape[2] == 10
    assert torch.equal(keys[1, :, 6:10], states[0][1])


def test_sizes_upstream_asks_for():
    """Catches prefill masks built by the model itself with a wrong offset or length."""
    cache = make(limit=40)
    put(cache, [0, 0], block(2, 7))
    put(cache, [7, 7], block(2, 5))
    assert cache.get_seq_length() == 7
    assert cache.get_mask_sizes(5, 0) == (12, 0)
    assert cache.layers[0].get_max_length() == 40
    assert not any(cache.is_sliding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_masks_are_additive(dtype):
    """Catches bool masks, which eager attention silently ignores, and infinities, which produce NaN rows."""
    cache = make(prompt_mask=[[1, 1, 1], [0, 0, 1]])
    columns = cache.open(torch.tensor([3, 5]), 3, 5, 2)
    mask = cache.mask(columns, dtype)
    assert mask.dtype == dtype
    assert mask.shape == (2, 1, 2, 7)
    assert set(mask.unique().tolist()) == {0.0, torch.finfo(dtype).min}
    assert mask[0, 0].eq(0).tolist() == [[True] * 4 + [False] * 3, [True] * 5 + [False] * 2]
    assert mask[1, 0].eq(0).tolist() == [[False] * 2 + [True] * 4 + [False], [False] * 2 + [True] * 5]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), batch=st.integers(1, 4), prompt=st.integers(1, 6), length=st.integers(1, 5))
def test_mask_is_its_definition(data, batch, prompt, length):
    """Catches errors on ragged rows: a key is visible iff it is real, not later than the query, and in the window."""
    pads = [data.draw(st.integers(0, prompt - 1)) for _ in range(batch)]
    padded = data.draw(st.booleans())
    prompt_mask = torch.tensor([[column >= pad for column in range(prompt)] for pad in pads]) if padded else None
    windows = {"full_attention": None, "sliding_attention": data.draw(st.integers(1, 8))}
    starts = [data.draw(st.integers(0, 9)) for _ in range(batch)]
    single = windows["sliding_attention"] if data.draw(st.booleans()) else None
    masks = []
    for form in (windows, single):
        cache = make(batch, 32, prompt_mask, form)
        columns = cache.open(torch.tensor(starts), min(starts), max(starts), length)
        masks.append(cache.mask(columns, torch.float32))
    assert set(masks[0]) == set(windows)
    for mask, window in [*((masks[0][kind], windows[kind]) for kind in windows), (masks[1], single)]:
        assert mask.shape == (batch, 1, length, max(starts) + length)
        for row, start in enumerate(starts):
            for query in range(length):
                seen = [
                    key
                    for key in range(mask.shape[-1])
                    if key <= start + query
                    and not (padded and key < pads[row])
                    and (window is None or key > start + query - window)
                ]
                assert mask[row, 0, query].eq(0).nonzero().flatten().tolist() == seen
