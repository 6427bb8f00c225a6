"""`benchmarks/block_acceptance.py`: expected numbers of accepted draft tokens on the blocks of lossless decoding."""

import numpy as np
import pytest

from benchmarks import block_acceptance
from hf_diversed import load_demo_pair


def test_a_single_draft_token_is_accepted_as_often():
    """Catches totals of another prompt's row; block verification of one token is lossless verification."""
    pair = load_demo_pair()
    prompts = [
        pair.tokenizer(text)["input_ids"] for text in ("Question: Mia has 7 pens.", "Question: Tom", "The river")
    ]
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": 24}
    totals = block_acceptance.compare(pair, prompts, 1, seed=0, **settings)
    assert totals[:, 0] == pytest.approx(totals[:, 1])
    assert (totals[:, 3] > 0).all()
    assert (totals[:, 2] == totals[:, 3]).all()  # one draft token per block
    totals = block_acceptance.compare(pair, prompts, 5, seed=0, **settings)
    assert not np.allclose(totals[:, 0], totals[:, 1], rtol=1e-3)
    lossless, block = block_acceptance.summarize("math", totals)
    assert block["over_lossless"] == pytest.approx(totals[:, 1].sum() / totals[:, 0].sum())
    assert lossless["accepted_per_block"] == pytest.approx(totals[:, 0].sum() / totals[:, 3].sum())
