"""Sources of a call's settings: keyword, generation config, attachment, the model's own config, the head."""

import pytest
import torch
from transformers import GenerationConfig

import hf_diversed
from hf_diversed.generation import checks
from tests.tiny import PAD, SAMPLED, ragged_batch, tiny_head


@pytest.mark.parametrize("source", ["generation config", "attachment"])
@pytest.mark.parametrize(
    ("name", "value"), [("strictness", 0.0), ("max_bias", 0.05), ("bias_budget", 0.3), ("max_ratio", 1.0)]
)
def test_limits_of_a_head_come_from_every_source(pair, source, name, value):
    """Catches a bound that is read from keywords only, or accepted without effect."""
    (target, draft), limit = pair, {f"diversed_{name}": value}
    call = {**ragged_batch(), **SAMPLED, "max_new_tokens": 24, "return_dict_in_generate": True}
    given = {"diversed_head": tiny_head()} | ({} if name == "strictness" else {"diversed_strictness": 0.1})
    torch.manual_seed(0)
    expected = target.generate(**call, assistant_model=draft, **given, **limit).stats
    torch.manual_seed(0)
    if source == "generation config":
        call["generation_config"] = GenerationConfig(pad_token_id=PAD, **limit)
        found = target.generate(**call, assistant_model=draft, **given).stats
    else:
        with hf_diversed.attach(target, draft, **given, **limit):
            found = target.generate(**call).stats
    assert found == expected
    if name == "bias_budget":
        assert [row.bias_sum for row in found.per_row] == pytest.approx([value] * 4, abs=1e-6)
    elif name != "max_bias":
        assert found.mean_weight == value
    else:
        assert found.mean_bias <= value + 1e-6


def test_order_of_sources_of_the_draft_length(pair):
    """Catches upstream's default of 20: the order is keyword, the user's config, the head's, 5."""
    target, draft = pair

    def drafted_per_round(head, **kwargs):
        call = {"max_new_tokens": 40, "do_sample": False, "diversed_strictness": 0.0, "return_dict_in_generate": True}
        prompt = {"input_ids": ragged_batch()["input_ids"][:1]}
        out = target.generate(**prompt, assistant_model=draft, diversed_head=head, **(call | kwargs))
        return len(out.stats.accepted_per_position)

    assert drafted_per_round(tiny_head()) == 5
    assert drafted_per_round(tiny_head(num_assistant_tokens=3)) == 3
    assert drafted_per_round(tiny_head(num_assistant_tokens=3), num_assistant_tokens=7) == 7
    target.generation_config.num_assistant_tokens = 6
    try:
        assert drafted_per_round(tiny_head(num_assistant_tokens=3)) == 6
    finally:
        target.generation_config.num_assistant_tokens = None


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
        out = target.generate(
            **ragged_batch(), assistant_model=draft, verifier="lossless", return_dict_in_generate=True, **SAMPLED
        )
        assert out.stats.num_drafted > 0  # verifiers without a strictness ignore that of the model's config
    finally:
        del target.generation_config.diversed_strictness


@pytest.mark.parametrize(("head_says", "expected"), [(None, 2), (3, 3)])
def test_a_drafts_own_length_comes_after_the_heads(pair, head_says, expected, monkeypatch):
    """Catches a draft length of the draft model's generation config that is ignored."""
    target, draft = pair
    monkeypatch.setattr(draft.generation_config, "num_assistant_tokens", 2, raising=False)
    call = {"max_new_tokens": 24, "do_sample": False, "diversed_strictness": 0.0, "return_dict_in_generate": True}
    head = tiny_head(num_assistant_tokens=head_says)
    out = target.generate(**ragged_batch(1), assistant_model=draft, diversed_head=head, **call)
    assert len(out.stats.accepted_per_position) == expected
    assert draft.generation_config.num_assistant_tokens == 2


def test_settings_without_effect_are_warned_of(pair, caplog, monkeypatch):
    """Catches a schedule or a confidence threshold that is ignored without a warning, as a keyword or in the draft
    model's config."""
    target, draft = pair
    warnings = []
    monkeypatch.setattr(checks.logger, "warning_once", warnings.append)
    call = {**ragged_batch(), "assistant_model": draft, "verifier": "lossless", "max_new_tokens": 4}
    target.generate(**call)
    target.generate(**call, num_assistant_tokens_schedule="constant")
    assert warnings == []
    target.generate(**call, num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.7)
    assert ["num_assistant_tokens_schedule='heuristic'" in warnings[0], "confidence_threshold=0.7" in warnings[1]] == [
        True
    ] * 2
    monkeypatch.setattr(draft.generation_config, "assistant_confidence_threshold", 0.6, raising=False)
    target.generate(**call)
    assert "assistant_confidence_threshold=0.6" in warnings[2]


@pytest.mark.parametrize("drafts", ["assistant_model", "prompt_lookup_num_tokens"])
def test_draft_lengths_beyond_the_room_cost_nothing(pair, drafts):
    """Catches a head's config with a billion draft tokens, for which the buffer of ids would be allocated."""
    target, draft = pair
    length = 10**9
    given = {"num_assistant_tokens": length, drafts: draft}
    if drafts != "assistant_model":
        given = {drafts: length}
    call = {**ragged_batch(), "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(target.generate(**call, **given, verifier="lossless"), target.generate(**call))


def test_token_types_of_plain_text_are_dropped(pair):
    """Catches an error for tokenizers that return `token_type_ids` for every model; all zeros have no meaning."""
    target, draft = pair
    call = {**ragged_batch(), "assistant_model": draft, "verifier": "lossless", "max_new_tokens": 6}
    zeros = torch.zeros_like(call["input_ids"])
    assert torch.equal(target.generate(**call, token_type_ids=zeros), target.generate(**call))
