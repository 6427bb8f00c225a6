"""Where a call's settings come from: keyword, generation config, attachment, the model's own config, the head."""

import pytest
import torch
from transformers import GenerationConfig

import hf_diversed
from hf_diversed.generation import checks
from tests.tiny import EOS, PAD, SAMPLED, VOCAB_SIZE, ragged_batch, tiny_head


def test_dial_travels_in_generation_config(pair):
    """JSON callers send scalars only. Catches a dial that is read from keywords alone."""
    target, draft = pair
    config = GenerationConfig(max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=PAD)
    config.diversed_strictness = 0.0
    with hf_diversed.attach(target, draft, tiny_head()), hf_diversed.record_stats() as stats:
        target.generate(**ragged_batch(), generation_config=config)
    assert stats.acceptance_rate == 1.0
    assert stats.mean_weight == 0.0


def by_door(pair, door: str, limit: dict):
    """The output of a permissive head under a limit that comes by this way."""
    target, draft = pair
    call = {**ragged_batch(), **SAMPLED, "max_new_tokens": 24, "return_dict_in_generate": True}
    given = {"diversed_head": tiny_head(), "diversed_strictness": 0.1}
    if door == "keyword":
        return target.generate(**call, assistant_model=draft, **given, **limit)
    if door == "generation config":
        config = GenerationConfig(pad_token_id=PAD, **limit, **SAMPLED)
        return target.generate(**call, generation_config=config, assistant_model=draft, **given)
    with hf_diversed.attach(target, draft, **given, **limit):
        return target.generate(**call)


every_door = pytest.mark.parametrize("door", ["keyword", "generation config", "attachment"])


@every_door
def test_bias_budget_has_the_same_doors(pair, door):
    """Catches a budget that is taken and not spent: per row it must bind, and its sum must come back."""
    for row in by_door(pair, door, {"diversed_bias_budget": 0.3}).stats.per_row:
        assert row.bias_sum == pytest.approx(0.3, abs=1e-6)


@every_door
def test_max_ratio_has_the_same_doors(pair, door):
    """Catches a bound that is taken and does nothing: at 1 decoding is lossless."""
    torch.manual_seed(0)
    assert by_door(pair, door, {"diversed_max_ratio": 1.0}).stats.mean_weight == 1.0
    assert by_door(pair, door, {"diversed_max_ratio": 0.0}).stats.mean_weight < 0.3


def test_draft_length_comes_from_whoever_named_one(pair):
    """Catches upstream's silent 20: keyword, then the user's config, then the head's, then 5."""
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


def test_call_wins_over_attached_wins_over_the_models_config(pair):
    """Catches a server's default that no request can override, and one that a checkpoint's config beats."""
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
        assert out.stats.num_drafted > 0  # a dial in the model's config is no error for a rule without one
    finally:
        del target.generation_config.diversed_strictness


def test_prefix_functions_only_see_text_that_could_be(pair):
    """Catches drafts that are shown behind the EOS of a row that has finished."""
    target, draft = pair

    def allowed(row, prefix):
        generated = prefix[9:].tolist()
        if EOS in generated:
            assert set(generated[generated.index(EOS) :]) <= {EOS, PAD}, generated
        return list(range(1, VOCAB_SIZE))

    for seed in range(3):
        torch.manual_seed(seed)
        out = target.generate(
            **ragged_batch(seed=seed),
            assistant_model=draft,
            verifier="lossless",
            prefix_allowed_tokens_fn=allowed,
            max_new_tokens=24,
            do_sample=True,
            temperature=4.0,
            top_k=0,
        )
    assert (out == EOS).any()


@pytest.mark.parametrize(("head_says", "expected"), [(None, 2), (3, 3)])
def test_a_drafts_own_length_comes_after_the_heads(pair, head_says, expected, monkeypatch):
    """Catches the place where upstream reads the draft length, ignored without a word."""
    target, draft = pair
    monkeypatch.setattr(draft.generation_config, "num_assistant_tokens", 2, raising=False)
    call = {"max_new_tokens": 24, "do_sample": False, "diversed_strictness": 0.0, "return_dict_in_generate": True}
    head = tiny_head(num_assistant_tokens=head_says)
    out = target.generate(**ragged_batch(1), assistant_model=draft, diversed_head=head, **call)
    assert len(out.stats.accepted_per_position) == expected
    assert draft.generation_config.num_assistant_tokens == 2


def test_settings_of_upstreams_drafting_say_that_they_do_nothing(pair, caplog, monkeypatch):
    """Catches a schedule or a confidence threshold that is taken and dropped, by keyword or in the draft's config."""
    target, draft = pair
    said = []
    monkeypatch.setattr(checks.logger, "warning_once", said.append)
    call = {**ragged_batch(), "assistant_model": draft, "verifier": "lossless", "max_new_tokens": 4}
    target.generate(**call)
    target.generate(**call, num_assistant_tokens_schedule="constant")
    assert said == []
    target.generate(**call, num_assistant_tokens_schedule="heuristic", assistant_confidence_threshold=0.7)
    assert ["num_assistant_tokens_schedule='heuristic'" in said[0], "confidence_threshold=0.7" in said[1]] == [
        True
    ] * 2
    monkeypatch.setattr(draft.generation_config, "assistant_confidence_threshold", 0.6, raising=False)
    target.generate(**call)
    assert "assistant_confidence_threshold=0.6" in said[2]


@pytest.mark.parametrize("drafts", ["assistant_model", "prompt_lookup_num_tokens"])
def test_draft_lengths_beyond_the_room_cost_nothing(pair, drafts):
    """Catches a head's config that names a billion drafts and has the ids' buffer allocated for them."""
    target, draft = pair
    length = 10**9
    given = {"num_assistant_tokens": length, drafts: draft}
    if drafts != "assistant_model":
        given = {drafts: length}
    call = {**ragged_batch(), "max_new_tokens": 6, "do_sample": False}
    assert torch.equal(target.generate(**call, **given, verifier="lossless"), target.generate(**call))


def test_token_types_of_plain_text_are_dropped(pair):
    """Catches tokenizers that return `token_type_ids` for every model: all zeros say nothing."""
    target, draft = pair
    call = {**ragged_batch(), "assistant_model": draft, "verifier": "lossless", "max_new_tokens": 6}
    zeros = torch.zeros_like(call["input_ids"])
    assert torch.equal(target.generate(**call, token_type_ids=zeros), target.generate(**call))
