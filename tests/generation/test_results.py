"""Return values besides tokens: statistics of a call and of a block of calls, token records."""

import functools
import threading
from contextvars import copy_context

import pytest
import torch

import hf_diversed
from hf_diversed import BlockVerifier, PhaseVerifier, StaticEnsembleVerifier, support
from tests.tiny import Listener, generate, ragged_batch, tiny_head


def test_record_stats_collects_calls_and_nests(pair):
    """Catches counters that are changed after their block, or by calls of other threads."""
    call = functools.partial(generate, pair, verifier="lossless")
    with hf_diversed.record_stats() as outer:
        call()
        with hf_diversed.record_stats() as inner:
            call()
        first = outer.num_rounds
        thread = threading.Thread(target=copy_context().run, args=(call,))
        thread.start()
        thread.join()
        assert outer.num_rounds > first
    assert inner.num_rounds > 0
    assert len(inner.per_row) == 4
    assert len(outer.per_row) == 12
    total = outer.num_rounds
    call()
    assert outer.num_rounds == total


def test_token_records(pair):
    """Catches records that are shifted against the tokens, or sources that do not add up to the statistics."""
    target = pair[0]
    out = generate(pair, diversed_head=tiny_head(), output_token_records=True)
    records, new = out.token_records, out.sequences[:, 9:]
    real = records.source >= 0
    assert torch.equal(records.tokens[real], new[real])
    assert int((records.source == 0).sum()) == out.stats.num_accepted
    assert int(real.sum()) == out.stats.num_emitted
    drafted = records.source == 0
    assert records.relaxed.any()
    assert not records.relaxed[~drafted].any()
    assert bool((records.p[records.relaxed] < records.q[records.relaxed]).all())
    assert not records.weight[drafted].isnan().any()
    assert records.weight[records.source == 2].isnan().all()
    assert 0 < out.stats.mean_bias < out.stats.mean_tv
    with torch.no_grad():
        full = torch.softmax(target(**_with_mask(out.sequences, ragged_batch()["attention_mask"])).logits, -1)
    p = full[:, 8:-1].gather(-1, new[..., None]).squeeze(-1)
    assert torch.allclose(records.p[real], p[real], atol=1e-4)
    assert getattr(out, support.CACHE_ARGUMENT) is None


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


@pytest.mark.parametrize("mode", [{}, {"cache_implementation": "static"}], ids=["eager", "static"])
def test_log_probs_of_the_raw_and_the_processed_distribution(pair, mode):
    """Catches temperature or top-k in the raw log-probability, and the reverse; records without raw logits."""
    call = {"temperature": 0.7, "top_k": 5, "suppress_tokens": [9, 20], "output_token_records": True, **mode}
    out = generate(pair, verifier="static:0.5", **call)
    records, new = out.token_records, out.sequences[:, 9:]
    with torch.no_grad():
        raw = pair[0](**_with_mask(out.sequences, ragged_batch()["attention_mask"])).logits[:, 8:-1]
    processed = raw.clone()
    processed[..., [9, 20]] = -torch.inf
    processed = (processed / 0.7).where(processed >= processed.topk(5).values[..., -1:], -torch.inf)
    emitted = records.source >= 0
    for found, scores in ((records.log_prob_raw, raw), (records.log_prob_target, processed)):
        expected = scores.log_softmax(-1).gather(-1, new[..., None]).squeeze(-1)
        assert torch.allclose(found[emitted].exp(), expected[emitted].exp(), atol=1e-4)
        assert found[~emitted].isnan().all()
    stream = Listener()
    inputs = {name: values[:1] for name, values in ragged_batch().items()}
    generate(pair, verifier="static:0.5", streamer=stream, **inputs, **mode)
    assert not any(records.raw_p.isnan().any() for records, _ in stream.rounds)


def test_lossless_blocks_relax_nothing(pair):
    """Catches draft tokens that count as relaxed because their acceptance probabilities differ from min(1, p / q)."""
    relaxed = []
    for verifier in (BlockVerifier(), BlockVerifier(StaticEnsembleVerifier(0.3))):
        torch.manual_seed(0)
        out = generate(pair, verifier=verifier, max_new_tokens=24, output_token_records=True)
        relaxed.append(out.token_records.relaxed)
    assert not relaxed[0].any()
    assert 0 < relaxed[1].sum() < relaxed[1].numel() / 2


@pytest.mark.parametrize("output_token_records", [False, True])
def test_statistics_count_only_what_a_phase_defines(pair, output_token_records):
    """Catches NaN in a sum where a verifier without weights decided, an invented weight, and statistics that depend on
    the records."""
    inputs = ragged_batch()
    inputs["input_ids"][:2, -1] = 21
    inside = StaticEnsembleVerifier(0.1, max_bias=1.0, max_ratio=1e9)
    call = {"verifier": PhaseVerifier(inside, begin=21, end=34), "max_new_tokens": 24, "do_sample": True}
    torch.manual_seed(0)
    stats = generate(pair, **inputs, **call, output_token_records=output_token_records).stats
    assert stats.mean_weight == pytest.approx(0.1)
    assert 0 < stats.weight_count < stats.num_accepted + stats.num_rejected == stats.tv_count
    assert stats.bias_count == stats.weight_count


def _with_mask(sequences, mask):
    mask = torch.cat([mask, torch.ones(len(mask), sequences.shape[1] - mask.shape[1], dtype=mask.dtype)], dim=1)
    return {"input_ids": sequences, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}
