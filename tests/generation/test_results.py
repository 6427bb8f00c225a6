"""Return values besides tokens: statistics of a call and of a block of calls, token records, and streamed rounds.

`tests/fuzz` compares the statistics of every row with a naive reference.
"""

import functools
import math
from contextvars import copy_context
from dataclasses import fields, replace
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from transformers import TextIteratorStreamer

import hf_diversed
from hf_diversed import DiversedHead, DiversedHeadConfig, SpeculativeStats, support
from tests.generation.modes import STATIC
from tests.tiny import BOS, EOS, PAD, Listener, generate, ragged_batch, tiny_head, word_tokenizer


def test_record_stats_collects_calls_and_nests(pair):
    """Catches counters that are changed after their block, or by calls of other threads."""
    call = functools.partial(generate, pair, verifier="lossless")
    with hf_diversed.record_stats() as outer:
        call()
        with hf_diversed.record_stats() as inner:
            call()
        first = outer.num_rounds
        thread = Thread(target=copy_context().run, args=(call,))
        thread.start()
        thread.join()
        assert outer.num_rounds > first
    assert inner.num_rounds > 0
    assert len(inner.per_row) == 4
    assert len(outer.per_row) == 12
    total = outer.num_rounds
    call()
    assert outer.num_rounds == total


def target_logits(pair, sequences: torch.Tensor) -> torch.Tensor:
    """Return the target's raw logits for the new tokens of `ragged_batch`, from one forward."""
    mask = ragged_batch()["attention_mask"]
    mask = torch.cat([mask, torch.ones(len(mask), sequences.shape[1] - mask.shape[1], dtype=mask.dtype)], dim=1)
    with torch.no_grad():
        out = pair[0](sequences, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0))
    return out.logits[:, 8:-1]


def test_token_records(pair):
    """Catches records that are shifted against the tokens, or sources that do not add up to the statistics."""
    out = generate(pair, diversed_head=tiny_head(), output_token_records=True)
    records, new = out.token_records, out.sequences[:, 9:]
    real, drafted = records.source >= 0, records.source == 0
    assert torch.equal(records.tokens[real], new[real])
    assert int(drafted.sum()) == out.stats.num_accepted
    assert int(real.sum()) == out.stats.num_emitted
    assert records.relaxed.any()
    assert not records.relaxed[~drafted].any()
    assert bool((records.p[records.relaxed] < records.q[records.relaxed]).all())
    assert not records.weight[drafted].isnan().any()
    assert records.weight[records.source == 2].isnan().all()
    assert 0 < out.stats.mean_bias < out.stats.mean_tv
    p = target_logits(pair, out.sequences).softmax(-1).gather(-1, new[..., None])[..., 0]
    assert torch.allclose(records.p[real], p[real], atol=1e-4)
    assert getattr(out, support.CACHE_ARGUMENT) is None


def test_pieces_of_a_row(pair):
    """Catches another row's tokens, special tokens, and relaxed tokens that are named draft."""
    tokenizer = word_tokenizer()
    records = generate(pair, verifier="static:0.1", output_token_records=True).token_records
    found = []
    for row in range(len(records.tokens)):
        emitted = [column for column in range(records.tokens.shape[1]) if records.source[row, column] >= 0]
        tokens, sources = records.tokens[row, emitted].tolist(), records.source[row, emitted].tolist()
        origins = [["draft", "residual", "bonus"][source] for source in sources]
        origins = ["relaxed" if relaxed else name for name, relaxed in zip(origins, records.relaxed[row, emitted])]
        kept = [(f"w{token}", name) for token, name in zip(tokens, origins) if token not in (PAD, EOS, BOS)]
        pieces = records.pieces(tokenizer, row)
        assert [(text.strip(), name) for text, name in pieces] == kept
        assert "".join(text for text, _ in pieces) == " ".join(text for text, _ in kept)
        found += kept
    assert {name for _, name in found} == {"draft", "relaxed", "residual", "bonus"}


def test_pieces_of_characters_that_several_tokens_spell(pair):
    """Catches tokens that are decoded alone, and replacement characters."""
    spelled = [b"caf", b"\xc3", b"\xa9", b" x"]

    def decode(ids: list[int], skip_special_tokens: bool) -> str:
        return b"".join(spelled[token] for token in ids).decode(errors="replace")

    records = generate(pair, verifier="lossless", output_token_records=True).token_records
    source, relaxed = torch.tensor([[0, 1, 0, 2]]), torch.tensor([[False, False, True, False]])
    records = replace(records, tokens=torch.arange(4)[None], source=source, relaxed=relaxed)
    pieces = [("caf", "draft"), ("é", "relaxed"), (" x", "bonus")]
    assert records.pieces(SimpleNamespace(decode=decode)) == pieces


def test_log_prob_of_emitted_tokens(pair):
    """Catches sampled log-probabilities in greedy decoding, v at bonus tokens, and numbers where there is no v."""
    call = functools.partial(generate, pair, output_token_records=True)
    greedy = call(verifier="static:0.3", do_sample=False).token_records
    assert (greedy.log_prob[greedy.source >= 0] == 0.0).all()
    records = call(verifier="static:0.3").token_records
    bonus = records.source == 2
    assert bonus.any()
    expected = torch.where(bonus, records.p, 0.3 * records.p + 0.7 * records.q).log()
    expected = expected.masked_fill(records.source < 0, float("nan"))
    assert torch.allclose(records.log_prob, expected, atol=1e-4, equal_nan=True)
    assert torch.allclose(records.log_prob_target, records.p.log(), equal_nan=True)
    records = call(verifier="lenience:0.3").token_records
    assert torch.equal(records.log_prob.isnan(), records.source != 2)


@pytest.mark.parametrize("mode", [{}, STATIC], ids=["eager", "static"])
def test_log_probs_of_the_raw_and_the_processed_distribution(pair, mode):
    """Catches temperature or top-k in the raw log-probability, and the reverse; records without raw logits."""
    call = {"temperature": 0.7, "top_k": 5, "suppress_tokens": [9, 20], "output_token_records": True, **mode}
    out = generate(pair, verifier="static:0.5", **call)
    records, new = out.token_records, out.sequences[:, 9:]
    raw = target_logits(pair, out.sequences)
    processed = raw.clone()
    processed[..., [9, 20]] = -torch.inf
    processed = (processed / 0.7).where(processed >= processed.topk(5).values[..., -1:], -torch.inf)
    emitted = records.source >= 0
    for found, scores in ((records.log_prob_raw, raw), (records.log_prob_target, processed)):
        expected = scores.log_softmax(-1).gather(-1, new[..., None]).squeeze(-1)
        assert torch.allclose(found[emitted].exp(), expected[emitted].exp(), atol=1e-4)
        assert found[~emitted].isnan().all()


def test_bias_per_token_is_estimated_without_bias_and_recorded_exactly(pair):
    """Catches an estimate of something other than TV(v, p), and records that contain it instead of TV(v, p). False
    alarms: the two sums over some ten thousand positions differ by 4.5 standard errors once in 150,000 times; the seed
    is fixed."""
    by_token = DiversedHead(DiversedHeadConfig(32, 32, features="distribution", token_features=True)).eval()
    by_token.start_lenient(0.3)
    batch = {name: values.repeat_interleave(200, 0) for name, values in ragged_batch(4).items()}
    means = []
    for with_records in (False, True):
        torch.manual_seed(0)
        out = generate(pair, **batch, diversed_head=by_token, output_token_records=with_records)
        means.append(out.stats.bias_sum / out.stats.bias_count)
    bias = out.token_records.bias
    assert out.stats.bias_count == out.stats.num_accepted + out.stats.num_rejected == (~bias.isnan()).sum()
    assert means[1] == pytest.approx(bias.nanmean().item(), rel=1e-4)
    assert means[0] != means[1]
    # An estimate lies in [0, 1] and has the exact bias as its mean.
    assert abs(means[0] - means[1]) < 4.5 * (means[1] * (1.0 - means[1]) / out.stats.bias_count) ** 0.5
    assert (out.token_records.strict_prob.isnan() == bias.isnan()).all()


# Streaming.


def stream(pair, streamer, **call):
    torch.manual_seed(0)
    call = {"max_new_tokens": 24, "num_assistant_tokens": 4, "do_sample": True, "top_k": 0, **call}
    ids = ragged_batch(1)["input_ids"]
    return pair[0].generate(ids, assistant_model=pair[1], verifier="static:0.5", streamer=streamer, **call)


STOPS = [lambda ids, scores: torch.tensor([ids.shape[1] >= 18])]


@pytest.mark.parametrize("extra", [{"stopping_criteria": STOPS}, STATIC], ids=["eager", "static"])
def test_streamed_rounds_add_up_to_the_call(pair, extra):
    """Catches a round that is streamed twice or not at all, tokens after a stop inside a block, and lost forwards."""
    listener = Listener()
    out = stream(pair, listener, return_dict_in_generate=True, output_token_records=True, **extra)
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


@pytest.mark.parametrize("mode", [{}, STATIC], ids=["eager", "static"])
def test_streaming_needs_no_other_option(pair, mode):
    """Catches a streamer that needs return_dict_in_generate, changes tokens, is counted twice, or gets no numbers."""
    listener = Listener()
    silent = stream(pair, None, **mode)
    with hf_diversed.record_stats() as stats:
        streamed = stream(pair, listener, **mode)
    assert torch.equal(silent, streamed)
    assert stats.num_rounds == len(listener.rounds)
    assert all(not math.isnan(entry.mean_weight) for _, entry in listener.rounds if entry.num_drafted)
    assert any(records.relaxed.any() for records, _ in listener.rounds)
    assert not any(records.raw_p.isnan().any() for records, _ in listener.rounds)


def test_transformers_streamers_receive_the_text(pair):
    """Catches pieces that are lost, repeated or out of order in the thread that reads them."""
    tokenizer, found = word_tokenizer(), []
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60.0)
    thread = Thread(target=lambda: found.append(stream(pair, streamer)))
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer.decode(found[0][0, 9:])


def test_plain_decoding_has_no_rounds(pair):
    """Catches a streamer that upstream cannot use."""
    prompt, listener = ragged_batch(1)["input_ids"], Listener()
    out = pair[0].generate(prompt, max_new_tokens=5, streamer=listener)
    assert (listener.rounds, listener.ended, listener.tokens) == ([], 1, out[0].tolist())
