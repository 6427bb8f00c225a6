"""The ragged cache alone: growth, and the masks."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_diversed.cache import RaggedCache


def test_growth_by_doubling_keeps_content():
    """Catches lost keys after growth, uninitialised memory, copies at every step, or growth past the limit."""
    limit, generator = 1100, torch.Generator().manual_seed(0)
    cache, written, capacities = RaggedCache(1, limit, None, None), [], []
    for start in range(0, limit, 100):
        # Keys and values of different width, as in latent attention.
        written.append([torch.randn(2, 2, 100, width, generator=generator) for width in (3, 5)])
        cache.open(torch.tensor([start, start]), start, start, 100)
        for states, parts in zip(cache.update(*written[-1], 0), zip(*written)):
            assert torch.equal(states, torch.cat(parts, dim=2))
        buffer = cache.layers[0].keys
        capacities.append(buffer.shape[2])
        assert buffer[:, :, start + 100 :].abs().sum() == 0  # NaN propagates through a mask
    assert capacities[-1] == limit
    assert len(set(capacities)) <= 4  # 256, 512, 1024, limit


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
        cache = RaggedCache(1, 32, prompt_mask, form)
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
