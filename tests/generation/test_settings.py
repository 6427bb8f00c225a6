"""Sources of a call's settings: keyword, generation config, attachment, the model's own config, the head."""

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

import hf_diversed
from hf_diversed import LosslessVerifier, PhaseVerifier
from hf_diversed.generation import call
from tests.engines.modes import STATIC
from tests.tiny import PAD, SAMPLED, generate, ragged_batch, tiny_head


@pytest.mark.parametrize("source", ["generation config", "attachment"])
@pytest.mark.parametrize(("name", "value"), [("strictness", 0.0), ("max_bias", 0.05), ("max_ratio", 1.0)])
def test_limits_of_a_head_come_from_every_source(pair, source, name, value):
    """Catches a bound that is read from keywords only, or accepted without effect."""
    limit = {f"diversed_{name}": value}
    given = {"diversed_head": tiny_head()} | ({} if name == "strictness" else {"diversed_strictness": 0.1})
    torch.manual_seed(0)
    expected = generate(pair, max_new_tokens=24, **given, **limit).stats
    torch.manual_seed(0)
    if source == "generation config":
        config = GenerationConfig(pad_token_id=PAD, **limit)
        found = generate(pair, max_new_tokens=24, **given, generation_config=config).stats
    else:
        with hf_diversed.attach(*pair, **given, **limit):
            found = generate(pair, max_new_tokens=24, assistant_model=None).stats
    assert found == expected
    if name != "max_bias":
        assert found.mean_weight == value
    else:
        assert found.mean_bias <= value + 1e-6


def test_order_of_sources_of_the_draft_length(pair, monkeypatch):
    """Catches upstream's default of 20: the order is keyword, the user's config, the head's, the draft model's, 5."""
    configs = [model.generation_config for model in pair]

    def drafted_per_round(of_head: int | None = None, **kwargs) -> int:
        call = {**ragged_batch(2), "max_new_tokens": 40, "do_sample": False, "diversed_strictness": 0.0}
        head = tiny_head(num_assistant_tokens=of_head)
        return len(generate(pair, **call, diversed_head=head, **kwargs).stats.accepted_per_position)

    assert drafted_per_round() == 5
    monkeypatch.setattr(configs[1], "num_assistant_tokens", 2, raising=False)
    assert drafted_per_round() == 2
    assert drafted_per_round(3) == 3
    assert drafted_per_round(3, num_assistant_tokens=7) == 7
    monkeypatch.setattr(configs[0], "num_assistant_tokens", 6, raising=False)
    assert drafted_per_round(3) == 6
    assert configs[1].num_assistant_tokens == 2


def test_call_then_attachment_then_model_config(pair):
    """Catches a server's default that no request can override, and one that a checkpoint's config overrides."""
    target, draft = pair
    config = GenerationConfig(max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=PAD, num_assistant_tokens=2)
    config.diversed_strictness = 0.0
    target.generation_config.diversed_strictness = 0.7
    try:
        with hf_diversed.attach(target, draft, tiny_head(), diversed_strictness=1.0, num_assistant_tokens=6):
            for call, weight, gamma in (({"generation_config": config}, 0.0, 2), (SAMPLED, 1.0, 6)):
                with hf_diversed.record_stats() as stats:
                    target.generate(**ragged_batch(), **call)
                assert stats.mean_weight == pytest.approx(weight)
                assert len(stats.accepted_per_position) == gamma
        out = generate(pair, verifier="lossless")
        assert out.stats.num_drafted > 0  # verifiers without a strictness ignore that of the model's config
    finally:
        del target.generation_config.diversed_strictness


def test_settings_without_effect_are_warned_of(pair, monkeypatch):
    """Catches a schedule of the call or the draft model that is silently ignored, and confidence without effect."""
    warnings = []
    monkeypatch.setattr(call.logger, "warning_once", warnings.append)
    generate(pair, verifier="lossless")
    for schedule in ("constant", "confidence"):
        generate(pair, verifier="lossless", num_assistant_tokens_schedule=schedule)
    generate(pair, verifier="lossless", assistant_confidence_threshold=0.7)
    assert warnings == []
    generate(pair, verifier="lossless", num_assistant_tokens_schedule="heuristic")
    assert "num_assistant_tokens_schedule='heuristic' has no effect" in warnings.pop()
    monkeypatch.setattr(pair[1].generation_config, "num_assistant_tokens_schedule", "dynamic", raising=False)
    generate(pair, verifier="lossless")
    assert "num_assistant_tokens_schedule='dynamic' has no effect" in warnings.pop()
    for confidence in ({"num_assistant_tokens_schedule": "confidence"}, {"assistant_confidence_threshold": 0.7}):
        given = {"num_assistant_tokens_schedule": "constant"} | confidence
        generate(pair, verifier="fly", **given)
        assert "has no effect" in warnings[-1]
        assert "FLyVerifier(entropy_threshold=0.3, window_size=None, top_k=3) does not allow" in warnings.pop()
        generate(pair, verifier="lossless", **STATIC, **given)
        assert "compiled rounds do not end early" in warnings.pop()
    assert warnings == []


def test_integers_of_numpy_are_accepted(pair):
    """Catches checks for Python's integers only: sweeps take their settings from an array."""
    two, three = np.arange(2, 4)
    call = {"max_new_tokens": np.int64(6), "do_sample": False}
    expected = pair[0].generate(**ragged_batch(), **call)
    lookup = {"assistant_model": None, "prompt_lookup_num_tokens": three, "max_matching_ngram_size": two}
    for given in ({"num_assistant_tokens": three}, lookup, {**lookup, "assistant_model": pair[1]}):
        verifier = PhaseVerifier(LosslessVerifier(), begin=two, end=three)
        assert torch.equal(generate(pair, **call, **given, verifier=verifier).sequences, expected)


@pytest.mark.parametrize("drafts", ["num_assistant_tokens", "prompt_lookup_num_tokens"])
def test_draft_lengths_beyond_the_room_cost_nothing(pair, drafts):
    """Catches a head's config with a billion draft tokens, for which the buffer of ids would be allocated."""
    given = {drafts: 10**9} | ({"assistant_model": None} if drafts == "prompt_lookup_num_tokens" else {})
    call = {"max_new_tokens": 6, "do_sample": False}
    expected = pair[0].generate(**ragged_batch(), **call)
    assert torch.equal(generate(pair, **call, **given, verifier="lossless").sequences, expected)
