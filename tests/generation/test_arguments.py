"""Ways to reach the loop, and sources of a call's settings: keyword, generation config, attachment, head."""

import copy
import functools
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, pipeline

import hf_diversed
from hf_diversed import diversed_decoding
from hf_diversed.verifiers import build_verifier
from tests.generation.modes import STATIC
from tests.generation.test_equals_reference import prompts
from tests.tiny import EOS, PAD, SAMPLED, Listener, generate, ragged_batch, tiny_head, word_tokenizer


# Ways to pass a verifier and a source of draft tokens. Each takes the pair and the settings of a call.


def by_attachment(pair, **call):
    with hf_diversed.attach(*pair, verifier="static:0.5"):
        return generate(pair, **call, assistant_model=None)


def by_loop(pair, streamer=None, **call):
    """Bind what `generate` does not pass on to the loop."""
    settings = {"assistant_model": pair[1], "verifier": build_verifier("static:0.5"), "streamer": streamer}
    loop = functools.partial(diversed_decoding, **settings)
    return generate(pair, **call, assistant_model=None, custom_generate=loop)


def without_the_hook(pair, **call):
    hf_diversed.uninstall_hook()
    try:
        return by_loop(pair, **call)
    finally:
        hf_diversed.install_hook()


@pytest.mark.parametrize("door", [by_attachment, by_loop, without_the_hook])
def test_every_door_leads_to_the_same_call(pair, door):
    """Catches a loop that only works through the hook, and settings or streams that are lost at another door."""
    outputs, listeners = [], (Listener(), Listener())
    for way, listener in zip((functools.partial(generate, verifier="static:0.5"), door), listeners):
        torch.manual_seed(0)
        outputs.append(way(pair, **ragged_batch(1), max_new_tokens=20, streamer=listener))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert outputs[0].stats == outputs[1].stats
    new = outputs[0].sequences[0, 9:].tolist()
    assert [listener.tokens[-len(new) :] for listener in listeners] == [new, new]


def test_head_as_object_and_as_folder(pair, tmp_path):
    """Catches a head that is loaded differently by name than it is used as an object."""
    head = tiny_head()
    head.save_pretrained(tmp_path)
    results = []
    for given in (head, str(tmp_path), tmp_path):
        torch.manual_seed(0)
        results.append(generate(pair, diversed_head=given).sequences.tolist())
    assert results[0] == results[1] == results[2]


def test_other_ways_to_select_prompt_lookup(pair):
    """Catches prompt lookup that only the keyword selects, and the length of an attached draft model."""
    call = {**prompts(2), "do_sample": False, "max_new_tokens": 24, "assistant_model": None}
    expected = generate(pair, **call, verifier="lossless", prompt_lookup_num_tokens=4).stats
    assert expected.num_drafted > 0
    with hf_diversed.attach(*pair, verifier="lossless", num_assistant_tokens=3):
        assert generate(pair, **call).stats.draft_forwards > 0
        assert generate(pair, **call, prompt_lookup_num_tokens=4).stats == expected
    settings = {key: call.pop(key) for key in ("do_sample", "max_new_tokens")} | {"top_k": None}
    config = GenerationConfig(**settings, prompt_lookup_num_tokens=4, return_dict_in_generate=True, pad_token_id=PAD)
    config.eos_token_id = EOS
    assert pair[0].generate(**prompts(2), generation_config=config, verifier="lossless").stats == expected


def test_attachments_are_not_on_the_model(pair):
    """Catches state on the model: copies must not change while a draft model is attached."""
    call = {**ragged_batch(), "max_new_tokens": 12, "do_sample": False}
    plain = pair[0].generate(**call)
    with hf_diversed.attach(*pair, verifier="static:0"), hf_diversed.record_stats() as stats:
        assert torch.equal(pickle.loads(pickle.dumps(pair[0])).generate(**call), plain)
        assert stats.num_rounds == 0
        pair[0].generate(**call)
    assert stats.num_rounds > 0


def test_text_generation_pipeline(pair):
    """Catches errors about arguments of pipelines, such as `assistant_tokenizer`."""
    tokenizer, (target, draft) = word_tokenizer(), pair
    settings = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    prompt = "w10 w20 w30"
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)(prompt, **settings)
    assisted = pipeline(
        "text-generation", model=target, tokenizer=tokenizer, assistant_model=draft, assistant_tokenizer=tokenizer
    )
    with hf_diversed.record_stats() as stats:
        relaxed = assisted(prompt, diversed_head=tiny_head(), diversed_strictness=1.0, **settings)
    assert relaxed == plain
    assert stats.num_drafted > 0


@pytest.mark.parametrize("wrapped", ["target", "draft"])
def test_lora_adapters(pair, wrapped):
    """Catches forwards that bypass the adapter, and PEFT's own `generate` losing our arguments."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    target, draft = copy.deepcopy(pair[0]), copy.deepcopy(pair[1])
    torch.manual_seed(5)
    if wrapped == "target":
        target = get_peft_model(target, config)
    else:
        draft = get_peft_model(draft, config)
    plain = target.generate(**ragged_batch(), max_new_tokens=16, do_sample=False)
    bare = pair[0].generate(**ragged_batch(), max_new_tokens=16, do_sample=False)
    assert torch.equal(plain, bare) == (wrapped == "draft")
    ours = target.generate(
        **ragged_batch(), assistant_model=draft, verifier="lossless", max_new_tokens=16, do_sample=False
    )
    assert torch.equal(ours, plain)
    with hf_diversed.attach(target, draft, verifier="lossless"), hf_diversed.record_stats() as stats:
        target.generate(**ragged_batch(), max_new_tokens=4, do_sample=False)
    assert stats.num_rounds > 0


@pytest.mark.parametrize("source", ["generation config", "attachment"])
@pytest.mark.parametrize(("name", "value"), [("strictness", 0.0), ("max_bias", 0.05), ("max_ratio", 1.0)])
def test_limits_of_a_head_come_from_every_source(pair, source, name, value, tmp_path):
    """Catches a bound that is read from keywords only, is lost when a config is saved, or has no effect."""
    limit = {f"diversed_{name}": value}
    given = {"diversed_head": tiny_head()} | ({} if name == "strictness" else {"diversed_strictness": 0.1})
    torch.manual_seed(0)
    expected = generate(pair, max_new_tokens=24, **given, **limit).stats
    torch.manual_seed(0)
    if source == "generation config":
        GenerationConfig(pad_token_id=PAD, **limit).save_pretrained(tmp_path)
        config = GenerationConfig.from_pretrained(tmp_path)
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
    """Catches upstream's default of 20: the order is keyword, the user's config, the head's, the draft model's, 5.
    Catches that of the user's config as a conflict with prompt lookup, as if the caller had passed it."""
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
    assert generate(pair, assistant_model=None, verifier="lossless", prompt_lookup_num_tokens=2).stats.num_rounds


def test_call_then_attachment_then_model_config(pair, monkeypatch):
    """Catches a server's default that no request can override, and one that a checkpoint's config overrides."""
    config = GenerationConfig(max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=PAD, num_assistant_tokens=2)
    config.diversed_strictness = 0.0
    monkeypatch.setattr(pair[0].generation_config, "diversed_strictness", 0.7, raising=False)
    with hf_diversed.attach(*pair, tiny_head(), diversed_strictness=1.0, num_assistant_tokens=6):
        for call, weight, gamma in (({"generation_config": config}, 0.0, 2), (SAMPLED, 1.0, 6)):
            with hf_diversed.record_stats() as stats:
                pair[0].generate(**ragged_batch(), **call)
            assert stats.mean_weight == pytest.approx(weight)
            assert len(stats.accepted_per_position) == gamma
    # Verifiers without a strictness ignore that of the model's config.
    assert generate(pair, verifier="lossless").stats.num_drafted > 0


def test_settings_without_effect_are_warned_of(pair, monkeypatch, caplog):
    """Catches a schedule of the call or the draft model that is silently ignored, and confidence without effect."""

    def warning(**call) -> str:
        caplog.clear()
        generate(pair, **{"verifier": "lossless", "max_new_tokens": 2} | call)
        return caplog.text

    assert warning() == ""
    for schedule in ("constant", "confidence"):
        assert warning(num_assistant_tokens_schedule=schedule) == ""
    assert warning(assistant_confidence_threshold=0.7) == ""
    assert "num_assistant_tokens_schedule='heuristic' has no effect" in warning(
        num_assistant_tokens_schedule="heuristic"
    )
    monkeypatch.setattr(pair[1].generation_config, "num_assistant_tokens_schedule", "dynamic", raising=False)
    assert "num_assistant_tokens_schedule='dynamic' has no effect" in warning()
    for confidence in ({"num_assistant_tokens_schedule": "confidence"}, {"assistant_confidence_threshold": 0.7}):
        given = {"num_assistant_tokens_schedule": "constant"} | confidence
        ignored = warning(verifier="fly", **given)
        assert "has no effect" in ignored
        assert "FLyVerifier(entropy_threshold=0.3, window_size=None, top_k=3) does not allow" in ignored
        assert "compiled rounds do not end early" in warning(**STATIC, **given)


def test_an_eos_outside_of_the_vocabulary(pair):
    """Catches -1, with which no row ends early, in the ids that processors read, and copied after short matches."""
    call = {**ragged_batch(), "eos_token_id": -1, "pad_token_id": None, "max_new_tokens": 12, "do_sample": False}
    target = copy.deepcopy(pair[0])
    target.generation_config.pad_token_id = None
    for source in ({"assistant_model": pair[1]}, {"prompt_lookup_num_tokens": 3}):
        ours = target.generate(**call, **source, verifier="lossless", repetition_penalty=1.3)
        assert torch.equal(ours, target.generate(**call, repetition_penalty=1.3))
