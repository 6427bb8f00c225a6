"""Ways to reach the loop besides keywords: custom_generate, attachments, pipelines, adapters, streamers."""

import copy
import functools
import pickle

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import pipeline

import hf_diversed
from hf_diversed import StaticEnsembleVerifier, diversed_decoding
from tests.tiny import SAMPLED, Listener, generate, ragged_batch, tiny_head, tiny_model, word_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer()


def test_head_as_object_and_as_folder(pair, tmp_path):
    """Catches a head that is loaded differently by name than it is used as an object."""
    head = tiny_head()
    head.save_pretrained(tmp_path)
    results = []
    for given in (head, str(tmp_path), tmp_path):
        torch.manual_seed(0)
        results.append(generate(pair, diversed_head=given).sequences)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_custom_generate_door(pair):
    """Catches a loop that only works through the hook."""
    target, draft = pair
    verifier = StaticEnsembleVerifier(0.5)
    torch.manual_seed(0)
    hooked = target.generate(**ragged_batch(), assistant_model=draft, verifier=verifier, **SAMPLED)
    hf_diversed.uninstall_hook()
    try:
        torch.manual_seed(0)
        loop = functools.partial(diversed_decoding, assistant_model=draft, verifier=verifier)
        assert torch.equal(target.generate(**ragged_batch(), custom_generate=loop, **SAMPLED), hooked)
        with pytest.raises(ValueError, match="assistant_model"):
            target.generate(**ragged_batch(), custom_generate=diversed_decoding, **SAMPLED)
    finally:
        hf_diversed.install_hook()


def test_streamer_through_the_custom_generate_door(pair):
    """Catches a streamer that receives the prompt and then nothing."""
    target, draft = pair
    settings = {"assistant_model": draft, "verifier": StaticEnsembleVerifier(0.5), "streamer": Listener()}
    loop = functools.partial(diversed_decoding, **settings)
    out = target.generate(ragged_batch()["input_ids"][:1], custom_generate=loop, **SAMPLED)
    assert settings["streamer"].tokens == out[0, 9:].tolist()
    assert settings["streamer"].ended == 1


def test_attach_works_for_callers_that_pass_nothing(pair):
    """Catches state on the model: copies and saved files must not change while a draft model is attached."""
    target, draft = tiny_model("llama"), pair[1]
    head = tiny_head()
    plain = target.generate(**ragged_batch(), max_new_tokens=12, do_sample=False)
    keys, size = set(target.state_dict()), len(pickle.dumps(target))
    with hf_diversed.attach(target, draft, head), hf_diversed.record_stats() as stats:
        assert set(target.state_dict()) == keys
        assert len(pickle.dumps(target)) == size
        torch.manual_seed(0)
        attached = target.generate(**ragged_batch(), **SAMPLED)
        twin = copy.deepcopy(target)
        assert torch.equal(twin.generate(**ragged_batch(), max_new_tokens=12, do_sample=False), plain)
    torch.manual_seed(0)
    passed = target.generate(**ragged_batch(), assistant_model=draft, diversed_head=head, **SAMPLED)
    assert torch.equal(attached, passed)
    assert stats.num_drafted > 0
    assert torch.equal(target.generate(**ragged_batch(), max_new_tokens=12, do_sample=False), plain)


def test_text_generation_pipeline(pair, tokenizer):
    """Catches errors about arguments of pipelines, such as `assistant_tokenizer`."""
    target, draft = pair
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
    with hf_diversed.attach(target, draft, verifier="lossless"), hf_diversed.record_stats() as stats:
        attached = pipeline("text-generation", model=target, tokenizer=tokenizer)(prompt, **settings)
    assert attached == plain
    assert stats.num_drafted > 0


@pytest.mark.parametrize("wrapped", ["target", "draft", "both"])
def test_lora_adapters(pair, wrapped):
    """Catches forwards that bypass the adapter, and PEFT's own `generate` losing our arguments."""
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    target, draft = copy.deepcopy(pair[0]), copy.deepcopy(pair[1])
    if wrapped != "draft":
        torch.manual_seed(5)
        target = get_peft_model(target, config)
    if wrapped != "target":
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


def test_attachments_refuse_what_they_would_ignore(pair):
    """Catches a bound that is accepted without effect, and an invalid verifier that fails only in the first call."""
    target, draft = pair
    for limit in ("diversed_max_bias", "diversed_strictness"):
        with pytest.raises(ValueError, match=f"{limit} can only be used with a head"):
            hf_diversed.attach(target, draft, verifier="static:0.5", **{limit: 0.05}).__enter__()
    with pytest.raises(ValueError, match="nonsense"):
        hf_diversed.attach(target, draft, verifier="nonsense").__enter__()
    with hf_diversed.record_stats() as stats:
        target.generate(**ragged_batch(), **SAMPLED)
    assert stats.num_rounds == 0  # and nothing stays attached


def test_attached_draft_lengths_are_for_the_attached_draft(pair):
    """Catches an error about two draft lengths in a call with prompt lookup."""
    target, draft = pair
    with hf_diversed.attach(target, draft, verifier="static:0.5", num_assistant_tokens=3):
        with hf_diversed.record_stats() as stats:
            target.generate(**ragged_batch(), **SAMPLED | {"max_new_tokens": 24}, prompt_lookup_num_tokens=6)
        assert len(stats.accepted_per_position) == 6
