"""Streamed rounds against the records and statistics of the whole call."""

import math
from dataclasses import fields
from threading import Thread

import pytest
import torch
from transformers import TextIteratorStreamer

import hf_diversed
from hf_diversed import SpeculativeStats
from tests.tiny import Listener, ragged_batch, word_tokenizer


def _generate(pair, **kwargs):
    target, draft = pair
    settings = {"max_new_tokens": 24, "num_assistant_tokens": 4, "do_sample": True, "top_k": 0}
    torch.manual_seed(0)
    prompt = ragged_batch()["input_ids"][:1]
    return prompt, target.generate(prompt, assistant_model=draft, **(settings | kwargs))


STOPS = [lambda ids, scores: torch.tensor([ids.shape[1] >= 18])]


@pytest.mark.parametrize("extra", [{}, {"stopping_criteria": STOPS}, {"cache_implementation": "static"}])
def test_streamed_rounds_add_up_to_the_call(pair, extra):
    """Catches a round that is streamed twice or not at all, tokens after a stop inside a block, and lost forwards."""
    listener = Listener()
    returned = {"return_dict_in_generate": True, "output_token_records": True}
    _, out = _generate(pair, verifier="static:0.5", streamer=listener, **returned, **extra)
    for item in fields(out.token_records):
        whole = getattr(out.token_records, item.name)
        if whole is not None:
            parts = torch.cat([getattr(records, item.name) for records, _ in listener.rounds], dim=1)
            assert torch.equal(parts.nan_to_num(-9.0), whole.nan_to_num(-9.0)), item.name
    assert listener.tokens == out.sequences[0].tolist()
    total = SpeculativeStats()
    for _, stats in listener.rounds:
        assert stats.num_rounds == 1
        total.add(stats)
    for name, value in out.stats.to_dict().items():
        expected = pytest.approx(value) if isinstance(value, float) else value
        assert total.to_dict()[name] == expected, name
    assert listener.ended == 1


def test_streaming_needs_no_other_option(pair):
    """Catches a streamer that needs return_dict_in_generate, changes tokens, or is counted twice."""
    listener = Listener()
    _, silent = _generate(pair, verifier="static:0.5")
    with hf_diversed.record_stats() as stats:
        _, streamed = _generate(pair, verifier="static:0.5", streamer=listener)
    assert torch.equal(silent, streamed)
    assert stats.num_rounds == len(listener.rounds)
    assert all(not math.isnan(entry.mean_weight) for _, entry in listener.rounds if entry.num_drafted)
    assert any(records.relaxed.any() for records, _ in listener.rounds)


def test_transformers_streamers_receive_the_text(pair):
    """Catches pieces that are lost, repeated or out of order in the thread that reads them."""
    tokenizer = word_tokenizer()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60.0)
    found: list = []
    thread = Thread(target=lambda: found.append(_generate(pair, verifier="static:0.5", streamer=streamer)))
    thread.start()
    text = "".join(streamer)
    thread.join()
    prompt, ids = found[0]
    assert text == tokenizer.decode(ids[0, prompt.shape[1] :])


def test_plain_decoding_has_no_rounds(pair):
    """Catches a streamer that upstream cannot use."""
    target, _ = pair
    prompt, listener = ragged_batch()["input_ids"][:1], Listener()
    out = target.generate(prompt, max_new_tokens=5, streamer=listener)
    assert (listener.rounds, listener.ended, listener.tokens) == ([], 1, out[0].tolist())
