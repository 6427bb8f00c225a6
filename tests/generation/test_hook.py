"""The doors: what `import hf_diversed` changes about `generate`, and what it leaves alone."""

import copy
import functools
import inspect
import io
import os
import pickle
import subprocess
import sys
import threading
from contextvars import copy_context

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, GenerationMixin, PreTrainedTokenizerFast, pipeline
from transformers.generation.streamers import BaseStreamer

import hf_diversed
from hf_diversed import DiversedHead, DiversedHeadConfig, StaticEnsembleVerifier, diversed_decoding
from tests.tiny import EOS, PAD, VOCAB_SIZE, ragged_batch, tiny_draft, tiny_model


@pytest.fixture(scope="module")
def pair():
    target = tiny_model("llama")
    return target, tiny_draft(target)


def make_head(seed=0, **config) -> DiversedHead:
    torch.manual_seed(seed)
    head = DiversedHead(DiversedHeadConfig(target_hidden_size=32, draft_hidden_size=32, **config))
    torch.nn.init.normal_(head.out.weight, std=0.3)
    return head


@pytest.fixture(scope="module")
def tokenizer():
    words = {f"w{i}": i for i in range(VOCAB_SIZE)}
    raw = Tokenizer(models.WordLevel(words, unk_token="w3"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="w0", eos_token="w1", bos_token="w2")


SAMPLED = {"max_new_tokens": 12, "do_sample": True, "top_k": 0}


def test_without_our_arguments_nothing_changes(pair):
    """Invariant 9. Catches a hook that touches arguments, randomness or outputs of calls that are not ours."""
    target, draft = pair
    hooked = GenerationMixin.generate
    calls = [
        ragged_batch() | SAMPLED,
        ragged_batch() | {"max_new_tokens": 8, "num_beams": 2},
        {"input_ids": ragged_batch()["input_ids"][:1], "assistant_model": draft} | SAMPLED,
        ragged_batch() | SAMPLED | {"diversed_head": None, "verifier": None},
    ]
    for call in calls:
        torch.manual_seed(0)
        with_hook = target.generate(**call)
        hf_diversed.uninstall_hook()
        try:
            assert GenerationMixin.generate is not hooked
            torch.manual_seed(0)
            without = target.generate(**{k: v for k, v in call.items() if k not in ("diversed_head", "verifier")})
        finally:
            hf_diversed.install_hook()
        assert torch.equal(with_hook, without)


def test_install_is_idempotent_and_uninstall_restores():
    """Catches wrappers piling up, and an uninstall that leaves a wrapper behind."""
    hf_diversed.uninstall_hook()
    stock = GenerationMixin.generate
    hf_diversed.uninstall_hook()
    assert GenerationMixin.generate is stock
    hf_diversed.install_hook()
    once = GenerationMixin.generate
    hf_diversed.install_hook()
    assert GenerationMixin.generate is once
    names = inspect.signature(once).parameters
    assert {"diversed_head", "verifier", "diversed_quality", "diversed_max_bias", "diversed_bias_budget"} <= set(names)
    assert set(inspect.signature(stock).parameters) < set(names)


def test_environment_variable_opts_out():
    """Catches an import that patches in spite of HF_DIVERSED_NO_HOOK=1."""
    code = "from transformers import GenerationMixin as G; g = G.generate; import hf_diversed; assert G.generate is g"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HF_DIVERSED_NO_HOOK": "1"}, check=True)


def test_head_as_object_folder_and_kwarg_spellings(pair, tmp_path):
    """Catches a head that is loaded differently by name than it is used as an object."""
    target, draft = pair
    head = make_head()
    head.save_pretrained(tmp_path)
    results = []
    for given in (head, str(tmp_path), str(tmp_path)):
        torch.manual_seed(0)
        results.append(target.generate(**ragged_batch(), assistant_model=draft, diversed_head=given, **SAMPLED))
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


def test_attach_serves_callers_that_pass_nothing(pair):
    """Catches state on the model: everything that copies or saves it must not change while a draft is attached."""
    target, draft = tiny_model("llama"), pair[1]
    head = make_head()
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


def test_dial_travels_in_generation_config(pair):
    """JSON callers send scalars only. Catches a dial that is read from keywords alone."""
    target, draft = pair
    config = GenerationConfig(max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=PAD)
    config.diversed_quality = 0.0
    with hf_diversed.attach(target, draft, make_head()), hf_diversed.record_stats() as stats:
        target.generate(**ragged_batch(), generation_config=config)
    assert stats.acceptance_rate == 1.0
    assert stats.mean_weight == 0.0


@pytest.mark.parametrize("door", ["keyword", "generation config", "attachment"])
def test_bias_budget_has_the_same_doors(pair, door):
    """Catches a budget that is taken and not spent: per row it must bind, and its sum must come back."""
    target, draft = pair
    call = {**ragged_batch(), **SAMPLED, "max_new_tokens": 24, "return_dict_in_generate": True}
    given = {"diversed_head": make_head(), "diversed_quality": 0.1}
    limit = {"diversed_bias_budget": 0.3}
    if door == "keyword":
        out = target.generate(**call, assistant_model=draft, **given, **limit)
    elif door == "generation config":
        config = GenerationConfig(pad_token_id=PAD, **limit, **SAMPLED)
        out = target.generate(**call, generation_config=config, assistant_model=draft, **given)
    else:
        with hf_diversed.attach(target, draft, **given, **limit):
            out = target.generate(**call)
    for row in out.stats.per_row:
        assert row.bias_sum == pytest.approx(0.3, abs=1e-6)


def test_draft_length_comes_from_whoever_named_one(pair):
    """Catches upstream's silent 20: keyword, then the user's config, then the head's, then 5."""
    target, draft = pair

    def drafted_per_round(head, **kwargs):
        call = {"max_new_tokens": 40, "do_sample": False, "diversed_quality": 0.0, "return_dict_in_generate": True}
        prompt = {"input_ids": ragged_batch()["input_ids"][:1]}
        out = target.generate(**prompt, assistant_model=draft, diversed_head=head, **(call | kwargs))
        return len(out.stats.accepted_per_position)

    assert drafted_per_round(make_head()) == 5
    assert drafted_per_round(make_head(num_assistant_tokens=3)) == 3
    assert drafted_per_round(make_head(num_assistant_tokens=3), num_assistant_tokens=7) == 7
    target.generation_config.num_assistant_tokens = 6
    try:
        assert drafted_per_round(make_head(num_assistant_tokens=3)) == 6
    finally:
        target.generation_config.num_assistant_tokens = None


def test_nothing_of_the_users_is_changed(pair):
    """Invariant 13. Catches writes to configs, attributes and hooks, after success and after an exception."""
    target, draft = pair

    def snapshot():
        return [
            (
                model.generation_config.to_dict(),
                model.config.to_dict(),
                set(vars(model)),
                sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()),
            )
            for model in (target, draft)
        ]

    # Upstream installs its own hooks on the first call that asks for hidden states, and keeps them.
    for model in (target, draft):
        model(ragged_batch()["input_ids"], output_hidden_states=True)
    before = snapshot()
    target.generate(**ragged_batch(), assistant_model=draft, diversed_head=make_head(), **SAMPLED)
    assert snapshot() == before
    with pytest.raises(RuntimeError, match="stop here"):
        target.generate(
            **ragged_batch(),
            assistant_model=draft,
            diversed_head=make_head(),
            logits_processor=[_Failing()],
            **SAMPLED,
        )
    assert snapshot() == before


class _Failing:
    def __call__(self, input_ids, scores):
        raise RuntimeError("stop here")


def test_two_threads_with_different_heads(pair):
    """Invariant 13. Catches state shared between calls: hidden states, caches, statistics."""
    target, draft = pair
    jobs = [(make_head(seed), quality) for seed, quality in ((1, 0.3), (2, 0.8))]

    def run(job, results, index):
        with hf_diversed.record_stats() as stats:
            for _ in range(3):
                head, quality = job
                out = target.generate(
                    **ragged_batch(seed=index),
                    assistant_model=draft,
                    diversed_head=head,
                    diversed_quality=quality,
                    max_new_tokens=16,
                    do_sample=False,
                )
        results[index] = (out, stats.num_drafted)

    alone, together = {}, {}
    for index, job in enumerate(jobs):
        run(job, alone, index)
    threads = [threading.Thread(target=run, args=(job, together, index)) for index, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in range(2):
        assert torch.equal(alone[index][0], together[index][0])
        assert alone[index][1] == together[index][1]


def test_record_stats_collects_calls_and_nests(pair):
    """Catches counters that leak out of their block, or threads that report into someone else's."""
    target, draft = pair
    call = functools.partial(target.generate, **ragged_batch(), assistant_model=draft, verifier="lossless", **SAMPLED)
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
    assert len(outer.per_row) == 8
    total = outer.num_rounds
    call()
    assert outer.num_rounds == total


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


def test_text_generation_pipeline(pair, tokenizer):
    """Catches pipeline arguments (`assistant_tokenizer` among them) that our checks trip over."""
    target, draft = pair
    settings = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    prompt = "w10 w20 w30"
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)(prompt, **settings)
    assisted = pipeline(
        "text-generation", model=target, tokenizer=tokenizer, assistant_model=draft, assistant_tokenizer=tokenizer
    )
    with hf_diversed.record_stats() as stats:
        relaxed = assisted(prompt, diversed_head=make_head(), diversed_quality=1.0, **settings)
    assert relaxed == plain
    assert stats.num_drafted > 0
    with hf_diversed.attach(target, draft, verifier="lossless"), hf_diversed.record_stats() as stats:
        attached = pipeline("text-generation", model=target, tokenizer=tokenizer)(prompt, **settings)
    assert attached == plain
    assert stats.num_drafted > 0


def test_call_wins_over_attached_wins_over_the_models_config(pair):
    """Catches a server's default that no request can override, and one that a checkpoint's config beats."""
    target, draft = pair
    config = GenerationConfig(max_new_tokens=12, do_sample=True, top_k=0, pad_token_id=PAD, num_assistant_tokens=2)
    config.diversed_quality = 0.0
    target.generation_config.diversed_quality = 0.7
    try:
        with hf_diversed.attach(target, draft, make_head(), diversed_quality=1.0, num_assistant_tokens=6):
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
        del target.generation_config.diversed_quality


def test_attachments_nest(pair):
    """Catches an inner block that takes the outer attachment away with it."""
    target, draft = pair
    with hf_diversed.attach(target, draft, verifier="lossless"):
        with hf_diversed.attach(target, draft, verifier="static:0.0"):
            pass
        with hf_diversed.record_stats() as stats:
            target.generate(**ragged_batch(), **SAMPLED)
        assert 0 < stats.acceptance_rate < 1
    with hf_diversed.record_stats() as stats:
        target.generate(**ragged_batch(), **SAMPLED)
    assert stats.num_rounds == 0


def test_streamer_through_the_custom_generate_door(pair):
    """Catches a streamer that hears the prompt and then nothing."""
    target, draft = pair
    heard = []

    class Streamer(BaseStreamer):
        def put(self, value):
            heard.extend(value.flatten().tolist())

        def end(self):
            heard.append(None)

    loop = functools.partial(
        diversed_decoding, assistant_model=draft, verifier=StaticEnsembleVerifier(0.5), streamer=Streamer()
    )
    out = target.generate(ragged_batch()["input_ids"][:1], custom_generate=loop, **SAMPLED)
    assert heard == [*out[0, 9:].tolist(), None]


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


def test_refusals_of_what_would_be_ignored(pair, tmp_path):
    """Catches options without a rule, rows without a value, and pairs that do not belong together."""
    target, draft = pair
    call = {**ragged_batch(), "assistant_model": draft, "max_new_tokens": 4}
    with pytest.raises(ValueError, match="pass diversed_head= or verifier="):
        target.generate(**call, output_token_records=True)
    for quality in (0.0, torch.tensor([0.5])):
        with pytest.raises(ValueError, match="diversed_quality acts on relaxed decoding only"):
            target.generate(**call, diversed_quality=quality)
    prompt = {"input_ids": ragged_batch()["input_ids"][:1], "assistant_model": draft, "max_new_tokens": 4}
    assert target.generate(**prompt, output_token_records=False).shape == (1, 13)
    with pytest.raises(ValueError, match=r"one per prompt \(4\), got 2"):
        target.generate(**call, diversed_head=make_head(), diversed_quality=[0.0, 1.0])
    with pytest.raises(ValueError, match="vocabulary of 99 ids, got 64"):
        target.generate(**call, diversed_head=make_head(vocab_size=99))
    stranger = copy.deepcopy(draft)
    stranger.resize_token_embeddings(64 + 600, mean_resizing=False)
    with pytest.raises(ValueError, match="64 and 664 ids"):
        target.generate(**{**call, "assistant_model": stranger}, verifier="lossless")
    make_head().save_pretrained(tmp_path)
    assert target.generate(**call, diversed_head=tmp_path).shape[0] == 4  # a pathlib.Path is a folder too


def test_wrapped_by_others(pair):
    """Catches a hook that takes somebody else's wrapper for its own and throws it away."""
    ours = GenerationMixin.generate

    @functools.wraps(ours)
    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    GenerationMixin.generate = theirs
    try:
        hf_diversed.install_hook()
        assert GenerationMixin.generate is theirs
        with pytest.raises(RuntimeError, match="wrapped again"):
            hf_diversed.uninstall_hook()
        assert GenerationMixin.generate is theirs
    finally:
        GenerationMixin.generate = ours


def test_positional_arguments(pair):
    """Catches a hook that only understands keywords."""
    target, draft = pair
    batch = ragged_batch()
    config = GenerationConfig(max_new_tokens=10, do_sample=False, pad_token_id=PAD)
    mask = {"attention_mask": batch["attention_mask"]}
    plain = target.generate(batch["input_ids"], config, **mask)
    ours = target.generate(batch["input_ids"], config, None, None, None, None, draft, verifier="lossless", **mask)
    assert torch.equal(ours, plain)


def test_token_records(pair):
    """Catches records that are shifted against the tokens, or sources that do not add up to the statistics."""
    target, draft = pair
    out = target.generate(
        **ragged_batch(),
        assistant_model=draft,
        diversed_head=make_head(),
        output_token_records=True,
        return_dict_in_generate=True,
        **SAMPLED,
    )
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


def _with_mask(sequences, mask):
    mask = torch.cat([mask, torch.ones(len(mask), sequences.shape[1] - mask.shape[1], dtype=mask.dtype)], dim=1)
    return {
        "input_ids": sequences,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp_min(0),
    }


def test_stats_survive_json_and_pickle(pair):
    """Catches tensors left in the counters."""
    import json

    target, draft = pair
    out = target.generate(
        **ragged_batch(), assistant_model=draft, verifier="lossless", return_dict_in_generate=True, **SAMPLED
    )
    assert json.loads(json.dumps(out.stats.to_dict()))["num_draft_tokens"] == out.stats.num_drafted
    buffer = io.BytesIO()
    torch.save(out.stats.to_dict(), buffer)
    assert out.past_key_values is None
