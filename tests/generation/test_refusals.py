"""Unsupported calls of relaxed decoding raise an error with advice, before any module has run."""

import contextlib
import traceback
import warnings
from functools import cached_property, partial
from typing import ClassVar

import peft
import pytest
import torch
import transformers as tf
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers.models.kosmos2.configuration_kosmos2 import Kosmos2TextConfig
from transformers.models.kosmos2.modeling_kosmos2 import Kosmos2TextForCausalLM

import hf_diversed
from hf_diversed import (
    DiversedHead,
    DiversedHeadConfig,
    LosslessVerifier,
    StaticEnsembleVerifier,
    support,
)
from hf_diversed.generation import checks
from hf_diversed.verifiers import ContrastiveVerifier, PhaseVerifier
from tests import tiny, versions
from tests.families.shrink import small_model
from tests.generation.sources import Copies


SMALL = {"vocab_size": tiny.VOCAB_SIZE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=tiny.VOCAB_SIZE, decoder_start_token_id=0, **sizes))


def bidirectional():
    sizes = {"head_dim": 8, "intermediate_size": 16, "num_key_value_heads": 1}
    return tf.GemmaForCausalLM(tf.GemmaConfig(**SMALL, **sizes, use_bidirectional_attention=True))


def kosmos2():
    sizes = {"embed_dim": 16, "layers": 1, "ffn_dim": 16, "attention_heads": 2}
    return Kosmos2TextForCausalLM(Kosmos2TextConfig(vocab_size=tiny.VOCAB_SIZE, **sizes))


def falcon_alibi():
    return tf.FalconForCausalLM(tf.FalconConfig(**SMALL, alibi=True))


def prompt_tuned():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(tiny.tiny_model("llama", seed=5), config).eval()


def adapted(kind=peft.LoraConfig, **config):
    config = kind(task_type="CAUSAL_LM", **config)
    return peft.get_peft_model(tiny.tiny_model("llama", seed=5), config).eval()


def attending(name):
    model = tiny.tiny_model("llama", seed=5)
    model.config._attn_implementation = name
    return model


def recomputing():
    model = tiny.tiny_model("llama", seed=5).train()
    with warnings.catch_warnings():  # the name that all versions know is deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable()
    return model


def without_weights():
    return tiny.tiny_model("llama", seed=5).to("meta")


def with_more_ids():
    model = tiny.tiny_model("llama", seed=5)
    model.resize_token_embeddings(tiny.VOCAB_SIZE + 600, mean_resizing=False)
    return model


def types_of_tokens(count):
    return torch.full((2, 6), count)


class Words:
    """The part of a tokenizer that the tokenizer check uses."""

    all_special_ids = ()
    added_tokens_decoder: ClassVar[dict] = {}

    def __init__(self, *words):
        self.words = {word: index for index, word in enumerate(words)}

    def get_vocab(self):
        return self.words


class Bench:
    """A pair, a head and two prompts, with the keyword arguments of a valid call."""

    target = cached_property(lambda self: tiny.tiny_model("llama"))
    draft = cached_property(lambda self: tiny.tiny_model("llama", seed=1))
    multimodal = cached_property(lambda self: tiny.tiny_model("gemma3_multimodal"))
    head = cached_property(lambda self: DiversedHead(DiversedHeadConfig(32, 32)).eval())
    wide_head = cached_property(lambda self: DiversedHead(DiversedHeadConfig(48, 32)).eval())

    def generate(self, target=None, **kwargs):
        given = {**tiny.ragged_batch(2, 6), "assistant_model": self.draft, "verifier": LosslessVerifier()}
        given |= {"max_new_tokens": 4, "do_sample": False, **kwargs}
        given = {name: value for name, value in given.items() if value is not MISSING}
        return (target or self.target).generate(**given)

    def with_head(self, **kwargs):
        return self.generate(verifier=MISSING, **{"diversed_head": self.head, **kwargs})


def embedding(count):
    """Return a model that embeds more ids than it has logits, as multimodal models do."""
    model = tiny.tiny_model("llama", seed=5)
    model.set_input_embeddings(torch.nn.Embedding(count, model.config.hidden_size))
    return model


def changing_rotation():
    """Return a model whose rotary frequencies change after 8 ids."""
    model = tiny.tiny_model("llama", seed=5)
    model.config.rope_parameters = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}
    model.config.max_position_embeddings = 8
    return model


def few_positions():
    """Return a GPT-2 with positions for 16 ids."""
    config = tiny.tiny_model("gpt2").config
    config.n_positions = 16
    return tf.GPT2LMHeadModel(config).eval()


class Budget(tf.LogitsProcessor):
    """Forces a token in its sixth call."""

    calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.index_fill(1, torch.tensor([5]), 1e4) if self.calls == 6 else scores


class Alternating(tf.LogitsProcessor):
    """Changes its scores with every call, and counts in a list."""

    def __init__(self):
        self.calls = []

    def __call__(self, input_ids, scores):
        self.calls.append(input_ids)
        return scores * (1.0 + len(self.calls) % 2)


class OneByOne(Alternating):
    """Expects one new token per call."""

    def __call__(self, input_ids, scores):
        assert not self.calls or self.calls[-1].shape[1] + 1 == input_ids.shape[1]
        self.calls.append(input_ids)
        return scores


def random_allowed(batch_id, ids):
    return torch.randperm(tiny.VOCAB_SIZE)[:30].tolist()


MISSING = object()
ELSEWHERE = "elsewhere"  # raised by a verifier, a check of a processor, or `attach`
AXES = torch.arange(1, 4)[:, None, None]  # factors that make positions differ per axis
BENCH = Bench()


def refused(entry, call, *words, error=ValueError, patch=None):
    """`call` must raise `error` from this entry of `checks.REFUSED`, or elsewhere. Its message must contain all words,
    which are separated by semicolons: what is wrong, what was given, what to do."""
    words = "; ".join(words).split("; ")
    return pytest.param(entry, call, words, error, patch, id="-".join(words[:2]))


def attach(*args, **kwargs):
    """Return a function that enters the block of an attachment."""
    return lambda: hf_diversed.attach(*args, **kwargs).__enter__()


def as_target_and_draft(entry, make, *words):
    yield refused(entry, lambda: BENCH.generate(make()), "target", *words)
    yield refused(entry, lambda: BENCH.generate(assistant_model=make()), "draft", *words)


generate, with_head = (partial(partial, method) for method in (BENCH.generate, BENCH.with_head))
looking_up = partial(generate, assistant_model=MISSING, **{"prompt_lookup_num_tokens": 3})

REFUSED = [
    # models
    *as_target_and_draft("no rollback", t5, "T5ForConditionalGeneration; use a decoder-only"),
    *as_target_and_draft(
        "no rollback", partial(small_model, "mamba"), "MambaForCausalLM; ignores its state; use another model"
    ),
    *as_target_and_draft("no rollback", kosmos2, "Kosmos2TextForCausalLM; counts positions from the padding id; use"),
    *as_target_and_draft(
        "no rollback",
        partial(small_model, "llama4_text"),
        "Llama4ForCausalLM; chunked; use a model with full or sliding-window",
    ),
    *as_target_and_draft("no rollback", partial(small_model, "bloom"), "BloomForCausalLM; ALiBi; use"),
    *as_target_and_draft(
        "no rollback", bidirectional, "GemmaForCausalLM; use_bidirectional_attention; use a causal model"
    ),
    *as_target_and_draft("no rollback", partial(small_model, "mpt"), "MptForCausalLM; ALiBi; use"),
    *as_target_and_draft("no rollback", falcon_alibi, "FalconForCausalLM; ALiBi; use"),
    *as_target_and_draft("prompt learning", prompt_tuned, "LlamaForCausalLM; PROMPT_TUNING; LoRA"),
    refused(
        "activated LoRA",
        lambda: BENCH.generate(adapted(alora_invocation_tokens=[5])),
        "target; aLoRA; alora_invocation_tokens",
    ),
    refused(
        "inputs per row",
        lambda: BENCH.generate(adapted(), adapter_names=["default", "__base__"]),
        "adapter_names; batch size must be 1, got 2; in a call of their own",
    ),
    refused(
        "inputs per row",
        lambda: BENCH.generate(
            adapted(peft.PolyConfig, target_modules=["q_proj"], r=2, n_tasks=2, n_skills=1),
            task_ids=torch.tensor([0, 1]),
        ),
        "task_ids; batch size must be 1, got 2",
    ),
    *(
        row
        for name in ("flash_attention_2", "flex_attention", "paged|sdpa")
        for row in as_target_and_draft("attention", partial(attending, name), name, 'attn_implementation="sdpa"')
    ),
    *as_target_and_draft(
        "positions of the batch",
        partial(small_model, "bart"),
        "BartForCausalLM; position_ids; batch size must be 1, got 2",
    ),
    refused(
        "positions of the batch",
        lambda: BENCH.generate(small_model("inkling_text")),
        "ignores position_ids; batch size must be 1, got 2",
    ),
    *as_target_and_draft(
        "positions of the batch",
        partial(small_model, "gpt_neo"),
        "GPTNeoForCausalLM; window; batch size must be 1, got 2",
    ),
    *as_target_and_draft("gradient checkpointing", recomputing, "gradient checkpointing; model.eval()"),
    *as_target_and_draft("no weights", without_weights, "meta; from_pretrained"),
    refused(
        "no output embedding",
        lambda: generate(assistant_model=tiny.tiny_model("llama").model)(),
        "draft; LlamaModel; output embedding",
    ),
    refused("other model", generate(assistant_model="org/draft"), "draft; str; from_pretrained", error=TypeError),
    refused("other model", generate(assistant_model=torch.nn.Linear(2, 2)), "draft; Linear", error=TypeError),
    refused("sharded", generate(), "target; sharded; ZeRO-3; gather", patch="is_deepspeed_zero3_enabled"),
    refused("sharded", generate(), "target; sharded; FSDP; gather", patch="is_fsdp_managed_module"),
    # modes
    refused("beam search", generate(num_beams=3), "num_beams; got 3; must be 1"),
    refused(
        "beam search", generate(generation_config=tf.GenerationConfig(num_beams=3, max_length=12)), "num_beams; 3"
    ),
    refused("counts", looking_up(max_matching_ngram_size=0), "max_matching_ngram_size; >= 1; got 0"),
    refused("two numbers of draft tokens", looking_up(num_assistant_tokens=5), "=3; =5; pass only the first"),
    refused(
        "several sequences without draft model",
        looking_up(num_return_sequences=2, do_sample=True),
        "num_return_sequences must be 1 with prompt_lookup_num_tokens; got 2; once per sequence; assistant_model",
    ),
    refused("counts", looking_up(prompt_lookup_num_tokens=True), "prompt_lookup_num_tokens; >= 1; got True"),
    refused(
        "hidden states without draft model",
        looking_up(verifier=MISSING, diversed_head=BENCH.head),
        'DiversedVerifier; hidden states; features="distribution"; assistant_model',
    ),
    *(
        refused(
            "confidence without draft model",
            looking_up(verifier=verifier),
            words,
            "probabilities of a draft model; assistant_model",
        )
        for verifier, words in (
            ("spec_cascade:chow:0.3", "chow"),
            ("block:spec_cascade:chow:0.3", "BlockVerifier(verifier=SpecCascadeVerifier("),
            (PhaseVerifier(LosslessVerifier(), ContrastiveVerifier(), begin=3, end=4), "PhaseVerifier("),
        )
    ),
    refused(
        "other modes", generate(assistant_ensemble_weight=0.4), 'assistant_ensemble_weight=0.4; verifier="static:0.4"'
    ),
    refused("early exit", generate(assistant_early_exit=1), "assistant_early_exit; assistant_model="),
    refused("source of draft tokens", generate(use_mtp=True), "assistant_model and use_mtp=True; pass only one"),
    refused(
        "source of draft tokens",
        generate(speculation_type="dflash"),
        'speculation_type="dflash"; DFlash draft model; got LlamaForCausalLM',
    ),
    refused("other modes", generate(penalty_alpha=0.6, top_k=4), "penalty_alpha=0.6; penalty_alpha=None"),
    refused("other modes", generate(force_words_ids=[[5]]), "force_words_ids=[[5]]; remove"),
    refused("other modes", generate(constraints=["x"]), "constraints=['x']; remove"),
    refused("other modes", generate(dola_layers="high"), "dola_layers='high'; remove"),
    refused("cache_implementation", generate(cache_implementation="offloaded"), "'offloaded'; Pass None"),
    refused("token_healing", generate(token_healing=True), "token_healing; call model.heal_tokens"),
    refused("processors", generate(guidance_scale=1.5), "guidance_scale; Classifier; Drop one"),
    *(
        refused("processors", generate(logits_processor=[subclass.__new__(subclass)]), f"{cls.__name__}; Drop one")
        for cls in support.REFUSED_PROCESSORS
        for subclass in [type(f"Of{cls.__name__}", (cls,), {})]
    ),
    *(
        refused(
            ELSEWHERE,
            lambda cls=cls: BENCH.generate(logits_processor=tf.LogitsProcessorList([cls()])),
            f"{cls.__name__} {fault}; must be a function of input_ids; docs/extending.md",
        )
        for cls, fault in (
            (Budget, "counts its calls in its attribute 'calls'"),
            (Alternating, "returns other scores"),
            (OneByOne, "raises AssertionError"),
        )
    ),
    refused(
        ELSEWHERE,
        generate(prefix_allowed_tokens_fn=random_allowed),
        "PrefixConstrainedLogitsProcessor returns other scores",
    ),
    *(
        refused(
            "other outputs",
            generate(**{name: True}, return_dict_in_generate=True),
            name,
            "run the model on the returned sequences",
        )
        for name in ("output_attentions", "output_hidden_states")
    ),
    refused("synced_gpus", generate(synced_gpus=True), "synced_gpus=True; numbers of rounds"),
    refused("custom_generate", generate(custom_generate="org/repo"), "custom_generate; pass one"),
    refused("custom_generate", generate(custom_generate=lambda *a, **k: None), "custom_generate; pass one"),
    refused(
        "neither head nor verifier",
        generate(assistant_model=MISSING, verifier=MISSING, custom_generate=hf_diversed.diversed_decoding),
        "diversed_decoding needs verifier= or diversed_head=; hf_diversed.VERIFIERS",
        error=TypeError,
    ),
    refused("streamer for a batch", generate(streamer=tiny.Listener()), "streamer; batch size 1; got 2"),
    refused("stop strings", generate(stop_strings=["x"]), "stop_strings; pass tokenizer="),
    # inputs
    *(
        refused(
            "the caller's cache",
            generate(**{name: tf.DynamicCache()}),
            "past_key_values= or cache=; Pass the whole prompt",
        )
        for name in support.CACHE_NAMES
    ),
    refused(
        "embeddings as input",
        lambda: BENCH.generate(input_ids=MISSING, inputs_embeds=torch.zeros(2, 6, 32)),
        "inputs_embeds; Pass input_ids",
    ),
    refused(
        "other inputs",
        lambda: BENCH.generate(BENCH.multimodal, pixel_values=torch.zeros(2, 3, 28, 28)),
        "'pixel_values'; text only; Remove it",
    ),
    refused(
        "other inputs",
        lambda: BENCH.generate(BENCH.multimodal, token_type_ids=torch.eye(2, 6).long()),
        "'token_type_ids'; text only; Remove it",
    ),
    *(
        refused(
            "shapes",
            generate(attention_mask=torch.ones(shape).long()),
            f"attention_mask; [2, 6]; got {shape}; tokenizer",
        )
        for shape in ([2, 4], [1, 6])
    ),
    refused("shapes", generate(attention_mask=torch.tensor([[1] * 6, [0] * 6])), "attention_mask; row 1; BOS"),
    refused("shapes", generate(position_ids=torch.arange(4).expand(2, -1)), "position_ids; [2, 6]; got [2, 4]"),
    refused(
        "shapes",
        generate(position_ids=torch.arange(6).expand(3, 1, -1) * AXES),
        "position_ids [3, 1, 6]; equal; one plane",
    ),
    refused("shapes", generate(position_ids=torch.arange(6).expand(3, 5, -1)), "position_ids; [2, 6]; got [3, 5, 6]"),
    refused(
        "other inputs", generate(is_causal=False), "'is_causal'"
    ),  # by upstream, if the forward must declare its inputs
    refused("shapes", generate(input_ids=torch.ones(0, 6).long(), attention_mask=MISSING), "at least one row; [0, 6]"),
    refused("shapes", generate(input_ids=torch.ones(2, 6)), "input_ids; long or int; float32"),
    refused("other inputs", generate(token_type_ids=types_of_tokens(1)), "'token_type_ids'; Remove it"),
    refused(
        "other inputs",
        lambda: BENCH.generate(tiny.tiny_model("gpt2"), token_type_ids=types_of_tokens(0)),
        "'token_type_ids'; Remove it",
    ),
    *(
        refused(
            "learned positions",
            lambda name=name: BENCH.generate(
                tiny.tiny_model(name), assistant_model=few_positions(), max_new_tokens=12
            ),
            "GPT2LMHeadModel has 16 positions; reach 18 tokens; max_new_tokens",
        )
        for name in ("gpt2", "llama")
    ),
    refused(
        "vocabularies",
        lambda: BENCH.generate(embedding(tiny.VOCAB_SIZE + 4), input_ids=torch.full((2, 6), tiny.VOCAB_SIZE + 1)),
        f"LlamaForCausalLM embeds {tiny.VOCAB_SIZE} ids; the id {tiny.VOCAB_SIZE + 1}; another draft model",
    ),
    refused("counts", generate(prefill_chunk_size=0), "prefill_chunk_size; >= 1; got 0"),
    refused(
        "tokenizers",
        generate(tokenizer=Words("a", "b"), assistant_tokenizer=Words("b", "a")),
        "different tokenizers; id 0 is 'a' for the target and 'b' for the draft model",
    ),
    # verifiers
    refused("no source of draft tokens", with_head(assistant_model=MISSING), "diversed_head; pass assistant_model="),
    refused("no source of draft tokens", generate(assistant_model=None), "verifier; pass assistant_model="),
    refused("head and verifier", generate(diversed_head=BENCH.head), "diversed_head=; verifier=; only one"),
    refused(ELSEWHERE, generate(verifier="losless"), "'losless'", *hf_diversed.VERIFIERS),
    refused("no verifier", generate(verifier=0.7), "float; Verifier", error=TypeError),
    refused(
        "no verifier",
        generate(verifier=StaticEnsembleVerifier),
        "instance; the class StaticEnsembleVerifier; (...)",
        error=TypeError,
    ),
    refused("no verifier", generate(verifier=BENCH.head), "DiversedHead; pass it as diversed_head=", error=TypeError),
    refused(ELSEWHERE, generate(verifier="diversed"), "'diversed'; needs a head; diversed_head="),
    refused(
        "no head",
        with_head(diversed_head=LosslessVerifier()),
        "LosslessVerifier; pass it as verifier=",
        error=TypeError,
    ),
    refused(
        "no head", with_head(diversed_head=DiversedHead), "the class DiversedHead; pass an instance", error=TypeError
    ),
    refused(ELSEWHERE, with_head(diversed_head=0.7), "DiversedHead; float; from_pretrained", error=TypeError),
    refused(ELSEWHERE, with_head(diversed_head=BENCH.wide_head), "target; 48; 32; train a head"),
    refused(ELSEWHERE, with_head(diversed_head=tiny.tiny_head(vocab_size=99)), "vocabulary of 99 ids, got 64"),
    refused("vocabularies", generate(assistant_model=with_more_ids()), "64 and 664 ids"),
    refused("records without dict", generate(output_token_records=True), "output_token_records; return_dict"),
    refused(
        "arguments without verifier",
        generate(verifier=MISSING, output_token_records=True),
        "pass diversed_head= or verifier=",
    ),
    *(
        refused(
            "arguments without verifier",
            generate(verifier=MISSING, diversed_strictness=value),
            "diversed_strictness requires a head",
        )
        for value in (0.0, torch.tensor([0.5]))
    ),
    refused("settings of a head", generate(diversed_strictness=0.5), "diversed_strictness; pass diversed_head="),
    refused("settings of a head", generate(diversed_max_bias=0.1), "diversed_max_bias; pass diversed_head="),
    *(
        refused(ELSEWHERE, with_head(**{f"diversed_{name}": 1.5}), name, "[0, 1]; 1.5; lossless")
        for name in ("strictness", "max_bias")
    ),
    refused(ELSEWHERE, with_head(diversed_strictness=[0.1, 0.5, 0.9]), "strictness; one per prompt (2); got 3"),
    *(
        refused(ELSEWHERE, with_head(**{f"diversed_{name}": value}), f"{name}; must be a number", repr(value))
        for name, value in (
            ("strictness", "0.5"),
            ("strictness", [0.5, None]),
            ("max_ratio", True),
            ("max_bias", "0.1"),
        )
    ),
    *(
        refused(
            "inputs without tensors",
            generate(**{name: [[3, 4], [5, 6]]}),
            f"{name}; tensor; got list; return_tensors",
            error=TypeError,
        )
        for name in ("input_ids", "attention_mask", "position_ids")
    ),
    *(
        refused(
            "number of draft tokens",
            generate(num_assistant_tokens=value),
            "num_assistant_tokens; >= 1",
            f"got {value}",
        )
        for value in (0, 2.5, True)
    ),
    # sources of draft tokens
    *(
        refused(
            "candidate generator of another class",
            generate(assistant_model=MISSING, candidate_generator=value),
            words,
            error=TypeError,
        )
        for value, words in (
            (BENCH.draft, "CandidateGenerator; LlamaForCausalLM"),
            ([5, 6], "got int; get_candidates"),
        )
    ),
    refused(
        "two sources of draft tokens",
        looking_up(candidate_generator=[Copies(), Copies()]),
        "candidate_generator and prompt_lookup_num_tokens=3; pass only one",
    ),
    refused(
        "copies before a recurrent draft model",
        lambda: BENCH.generate(assistant_model=small_model("qwen3_5_text"), prompt_lookup_num_tokens=3),
        "assistant_model and prompt_lookup_num_tokens=3; recurrent states; pass only one",
    ),
    *(
        refused(
            "threshold", generate(assistant_confidence_threshold=value), f"[0, 1]; got {value!r}; 0 sets no threshold"
        )
        for value in (-0.1, float("nan"), True, "0.4")
    ),
    *(
        refused(
            "early end without draft model",
            looking_up(**given),
            f"{words}; prompt_lookup_num_tokens; assistant_model=",
        )
        for given, words in (
            ({"assistant_confidence_threshold": 0.4}, "assistant_confidence_threshold=0.4"),
            ({"num_assistant_tokens_schedule": "confidence"}, "num_assistant_tokens_schedule='confidence'"),
        )
    ),
    refused(
        "rotary frequencies",
        lambda: BENCH.generate(changing_rotation()),
        "LlamaForCausalLM changes its rotary frequencies at 8 ids; 'dynamic'; can reach 10; lower max_new_tokens",
    ),
    # attach checks what it can at once
    refused("no rollback", attach(t5(), BENCH.draft, BENCH.head), "target; encoder-decoder"),
    refused("no rollback", attach(BENCH.target, t5(), BENCH.head), "draft; encoder-decoder"),
    refused(ELSEWHERE, attach(BENCH.target, BENCH.draft), "diversed_head=; verifier="),
    refused(
        "settings of a head",
        attach(BENCH.target, BENCH.draft, verifier="static:0.5", diversed_max_bias=0.05),
        "diversed_max_bias can only be used with a head",
    ),
    refused(
        "no head",
        attach(BENCH.target, BENCH.draft, LosslessVerifier()),
        "pass it as verifier",
        error=TypeError,
    ),
    refused(ELSEWHERE, attach(BENCH.target, BENCH.draft, BENCH.head, verifier=LosslessVerifier()), "exactly one"),
    refused(
        ELSEWHERE,
        attach(BENCH.target, BENCH.draft, BENCH.head, strictness=0.5),
        "attach; unknown settings ['strictness']; diversed_strictness",
        error=TypeError,
    ),
]


@contextlib.contextmanager
def modules_run():
    """The modules, of any model, whose forward is called in the block."""
    ran = []
    hook = register_module_forward_pre_hook(lambda module, args: ran.append(type(module).__name__))
    try:
        yield ran
    finally:
        hook.remove()


# peft 0.21 asks transformers 5.23 for the deprecated `is_gradient_checkpointing` (peft_model.py, PeftModel.__init__).
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@versions.MAY_WARN_OF_OFFLOADING
@pytest.mark.parametrize(("entry", "call", "words", "error", "patch"), REFUSED)
def test_refused_by_name_before_any_forward(entry, call, words, error, patch, monkeypatch):
    """Catches a mode that is ignored, fails during decoding, or raises an error of upstream about something else."""
    if patch:
        monkeypatch.setattr(support, patch, lambda *args: True)
    with modules_run() as ran, pytest.raises(error) as raised:
        call()
    assert ran == []
    missing = [word for word in words if word not in str(raised.value)]
    assert not missing, f"{missing} not in: {raised.value}"
    last = list(traceback.walk_tb(raised.tb))[-1][0]
    raised_by_list = last.f_code is checks.refuse.__code__
    assert (last.f_locals["refusal"] if raised_by_list else None) is checks.REFUSED.get(entry)


def test_every_entry_has_a_row():
    """Catches an entry that no call can reach."""
    entries = {row.values[0] for row in REFUSED}
    assert entries - {ELSEWHERE} == set(checks.REFUSED)
    parts = checks.WITHOUT_VERIFIER, checks.GENERATE, checks.MODELS, checks.VERIFIERS, checks.CALLS
    assert sum(map(len, parts)) == len(checks.REFUSED)  # names are unique


def test_the_valid_call_succeeds():
    """Without its invalid argument every call of the table must succeed, or the table would prove nothing."""
    with modules_run() as ran:
        assert BENCH.generate().shape == (2, 10)
        assert BENCH.generate(verifier=MISSING, assistant_model=MISSING, output_token_records=False).shape == (2, 10)
        assert BENCH.with_head(diversed_strictness=[0.1, 0.9]).shape == (2, 10)
        assert BENCH.generate(assistant_model=MISSING, prompt_lookup_num_tokens=3).shape == (2, 10)
        assert BENCH.generate(BENCH.multimodal, assistant_model=BENCH.multimodal).shape == (2, 10)
    assert {"LlamaForCausalLM", "Gemma3ForConditionalGeneration"} <= set(ran)
    same = Words("a", "b"), Words("a", "b")
    assert BENCH.generate(tokenizer=same[0], assistant_tokenizer=same[1]).shape == (2, 10)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("num_beams", 4), ("assistant_early_exit", 1), ("cache_implementation", "paged"), ("stop_strings", "w5")],
)
def test_modes_set_in_the_models_own_config(entry, value, monkeypatch):
    """Catches a check of the call's arguments only: generation configs of checkpoints also select modes."""
    own = tf.GenerationConfig(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS)
    setattr(own, entry, value)
    monkeypatch.setattr(BENCH.target, "generation_config", own)
    with modules_run() as ran, pytest.raises(ValueError, match=entry):
        BENCH.generate()
    assert ran == []


def test_a_checkpoint_without_a_cache(monkeypatch):
    """Catches `use_cache: false` of a checkpoint, left by gradient checkpointing, as a setting of the call."""
    own = tf.GenerationConfig(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS, use_cache=False)
    expected = BENCH.generate()
    monkeypatch.setattr(BENCH.target, "generation_config", own)
    assert torch.equal(BENCH.generate(), expected)


def test_padding_needs_no_positions():
    """Catches columns counted in place of positions, and one for the last token, which no model reads."""
    target, padded = tiny.tiny_model("gpt2"), {}
    for name, values in tiny.ragged_batch(2, 6).items():
        padded[name] = torch.nn.functional.pad(values, (4, 0))
    out = BENCH.generate(target, assistant_model=few_positions(), max_new_tokens=11, **padded)
    assert torch.equal(out, target.generate(**padded, max_new_tokens=11, do_sample=False))


def test_two_versions_of_one_tokenizer_are_accepted():
    """Catches a comparison of sizes or of renamed special tokens: a chat model may have more tokens."""
    first, second = tiny.word_tokenizer(), tiny.word_tokenizer()
    first.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    second.add_special_tokens({"additional_special_tokens": ["<|person|>"]})
    checks.check_tokenizers(first, second)
    first.add_tokens(["more"])
    checks.check_tokenizers(first, second)
