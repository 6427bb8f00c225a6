"""Unsupported calls of relaxed decoding raise an error with advice, before any module has run."""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import peft
import pytest
import torch
import transformers as tf
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers.generation.streamers import BaseStreamer

import hf_diversed
from benchmarks.rounds import SyntheticVerifier
from hf_diversed import (
    DiversedHead,
    DiversedHeadConfig,
    LosslessVerifier,
    SpecCascadeVerifier,
    StaticEnsembleVerifier,
    _compat,
)
from hf_diversed.verifiers import BlockVerifier, ContrastiveVerifier, PhaseVerifier
from tests import tiny


SMALL = {
    "vocab_size": tiny.VOCAB_SIZE,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": tiny.PAD,
    "eos_token_id": tiny.EOS,
    "bos_token_id": tiny.BOS,
}


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=tiny.VOCAB_SIZE, decoder_start_token_id=0, **sizes))


def mamba():
    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "vocab_size": tiny.VOCAB_SIZE}
    return tf.MambaForCausalLM(tf.MambaConfig(**sizes))


def llama4():
    return tf.Llama4ForCausalLM(
        tf.Llama4TextConfig(**SMALL, head_dim=8, intermediate_size_mlp=16, num_local_experts=2, attention_chunk_size=8)
    )


def bloom():
    return tf.BloomForCausalLM(tf.BloomConfig(vocab_size=tiny.VOCAB_SIZE, hidden_size=16, n_layer=1, n_head=2))


def mpt():
    return tf.MptForCausalLM(tf.MptConfig(vocab_size=tiny.VOCAB_SIZE, d_model=16, n_layers=1, n_heads=2))


def falcon_alibi():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return tf.FalconForCausalLM(tf.FalconConfig(vocab_size=tiny.VOCAB_SIZE, alibi=True, **sizes))


def prompt_tuned():
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return peft.get_peft_model(tiny.tiny_model("llama", seed=5), config).eval()


def attending(name):
    model = tiny.tiny_model("llama", seed=5)
    model.config._attn_implementation = name
    return model


BART = {"d_model": 16, "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "is_decoder": True, "encoder_layers": 1}


def bart():
    config = tf.BartConfig(vocab_size=tiny.VOCAB_SIZE, decoder_layers=2, is_encoder_decoder=False, **BART)
    return tf.BartForCausalLM(config).eval()


def gpt_neo():
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "window_size": 4}
    kinds = [[["global", "local"], 1]]
    return tf.GPTNeoForCausalLM(tf.GPTNeoConfig(vocab_size=tiny.VOCAB_SIZE, attention_types=kinds, **sizes)).eval()


def recomputing():
    model = tiny.tiny_model("llama", seed=5).train()
    with warnings.catch_warnings():  # the name that all versions know is deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable()
    return model


def without_weights():
    return tiny.tiny_model("llama", seed=5).to("meta")


def types_of_tokens(count):
    return torch.full((2, 6), count)


class GreedyOnly(LosslessVerifier):
    greedy_only = True


class Streamer(BaseStreamer):
    def put(self, value):
        pass

    def end(self):
        pass


class Words:
    """The part of a tokenizer that the tokenizer check uses."""

    all_special_ids = ()
    added_tokens_decoder: ClassVar[dict] = {}

    def __init__(self, *words):
        self.words = {word: index for index, word in enumerate(words)}

    def __len__(self):
        return len(self.words)

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
        given = {
            **tiny.ragged_batch(2, 6),
            "assistant_model": self.draft,
            "verifier": LosslessVerifier(),
            "max_new_tokens": 4,
            "do_sample": False,
            **kwargs,
        }
        given = {name: value for name, value in given.items() if value is not MISSING}
        return (target or self.target).generate(**given)

    def with_head(self, **kwargs):
        return self.generate(verifier=MISSING, **{"diversed_head": self.head, **kwargs})


MISSING = object()
STATIC = next(name for name, rule in hf_diversed.VERIFIERS.items() if rule is StaticEnsembleVerifier)
BENCH = Bench()


@dataclass
class Row:
    """`call` must raise `error` with a message that contains all `words`: what is wrong, what was given, what to
    do."""

    name: str
    call: Callable
    words: list[str]
    error: type[Exception] = ValueError
    patch: tuple = ()
    marks: list = field(default_factory=list)


def as_target_and_draft(name, make, *words):
    return [
        Row(f"{name} target", lambda: BENCH.generate(make()), ["target", *words]),
        Row(f"{name} draft", lambda: BENCH.generate(assistant_model=make()), ["draft", *words]),
    ]


def bound():
    """Return a model as torch.compile and accelerate's dispatch leave it: calling a view of it would call the
    model."""
    model = tiny.tiny_model("llama", seed=5)
    model.forward = model.forward
    return model


generate, with_head = (partial(partial, method) for method in (BENCH.generate, BENCH.with_head))
looking_up = partial(generate, assistant_model=MISSING, **{"prompt_lookup_num_tokens": 3})

ROWS = [
    # models
    *as_target_and_draft("encoder-decoder", t5, "T5ForConditionalGeneration", "use a decoder-only"),
    *as_target_and_draft("Mamba", mamba, "MambaForCausalLM", "ignores its state", "use another model"),
    *as_target_and_draft("Llama 4", llama4, "Llama4ForCausalLM", "chunked", "use a model with full or sliding-window"),
    *as_target_and_draft("Bloom", bloom, "BloomForCausalLM", "ALiBi", "use"),
    *as_target_and_draft("MPT", mpt, "MptForCausalLM", "ALiBi", "use"),
    *as_target_and_draft("Falcon ALiBi", falcon_alibi, "FalconForCausalLM", "ALiBi", "use"),
    *as_target_and_draft("prompt tuning", prompt_tuned, "LlamaForCausalLM", "PROMPT_TUNING", "LoRA"),
    *(
        row
        for name in ("flash_attention_2", "flex_attention", "paged|sdpa")
        for row in as_target_and_draft(name, partial(attending, name), name, 'attn_implementation="sdpa"')
    ),
    *as_target_and_draft("Bart's decoder", bart, "BartForCausalLM", "position_ids", "batch size must be 1, got 2"),
    *as_target_and_draft("GPT-Neo", gpt_neo, "GPTNeoForCausalLM", "window", "batch size must be 1, got 2"),
    *as_target_and_draft("recomputing", recomputing, "gradient checkpointing", "model.eval()"),
    *as_target_and_draft("weightless", without_weights, "meta", "from_pretrained"),
    Row("draft by name", generate(assistant_model="org/draft"), ["draft", "str", "from_pretrained"], TypeError),
    Row("draft of torch", generate(assistant_model=torch.nn.Linear(2, 2)), ["draft", "Linear"], TypeError),
    Row("ZeRO-3", generate(), ["target", "sharded", "ZeRO-3", "gather"], patch=("is_deepspeed_zero3_enabled", True)),
    Row("FSDP", generate(), ["target", "sharded", "FSDP", "gather"], patch=("is_fsdp_managed_module", True)),
    # modes
    Row("beams", generate(num_beams=3), ["num_beams", "got 3", "must be 1"]),
    Row(
        "beams by config",
        generate(generation_config=tf.GenerationConfig(num_beams=3, max_length=12)),
        ["num_beams", "3"],
    ),
    Row(
        "prompt lookup and a draft",
        generate(prompt_lookup_num_tokens=3),
        ["assistant_model and prompt_lookup_num_tokens=3", "pass only one"],
    ),
    Row("no lookup length", looking_up(prompt_lookup_num_tokens=0), ["prompt_lookup_num_tokens", ">= 1", "got 0"]),
    Row("no n-gram", looking_up(max_matching_ngram_size=0), ["max_matching_ngram_size", ">= 1", "got 0"]),
    Row("two draft lengths", looking_up(num_assistant_tokens=5), ["=3", "=5", "pass only the first"]),
    Row("two samples looked up", looking_up(num_return_sequences=2, do_sample=True), ["num_return_sequences", "1"]),
    Row(
        "hidden states with prompt lookup",
        looking_up(verifier=MISSING, diversed_head=BENCH.head),
        ["DiversedVerifier", "hidden states", 'features="distribution"', "assistant_model"],
    ),
    *(
        Row(
            f"{rule} with prompt lookup",
            looking_up(verifier=SpecCascadeVerifier(rule, 0.3)),
            [rule, "probabilities of a draft model", "assistant_model"],
        )
        for rule in ("chow", "diff", "opt", "token_v1")
    ),
    *(
        Row(f"{name} with prompt lookup", looking_up(verifier=rule), [words, "probabilities of a draft model"])
        for name, rule, words in (
            ("block of a cascade", "block:spec_cascade:chow:0.3", "BlockVerifier(verifier=SpecCascadeVerifier("),
            (
                "block of contrasts",
                BlockVerifier(ContrastiveVerifier()),
                "BlockVerifier(verifier=ContrastiveVerifier(",
            ),
            ("phase", PhaseVerifier(LosslessVerifier(), ContrastiveVerifier(), begin=3, end=4), "PhaseVerifier("),
            ("given acceptance", SyntheticVerifier(ContrastiveVerifier(), 0.5), "SyntheticVerifier("),
        )
    ),
    Row(
        "upstream's ensemble",
        generate(assistant_ensemble_weight=0.4),
        ["assistant_ensemble_weight=0.4", "StaticEnsembleVerifier"],
    ),
    Row(
        "early exit and a draft",
        generate(assistant_early_exit=1),
        ["assistant_model and assistant_early_exit=1", "pass only one"],
    ),
    Row(
        "early exit and prompt lookup",
        looking_up(assistant_early_exit=1),
        ["prompt_lookup_num_tokens=3 and assistant_early_exit=1", "pass only one"],
    ),
    *(
        Row(
            f"early exit {layer}",
            generate(assistant_model=MISSING, assistant_early_exit=layer),
            ["assistant_early_exit", f"got {layer}", words],
        )
        for layer, words in ((0, ">= 1"), (2, "below the model's 2 layers"), (5, "below the model's 2 layers"))
    ),
    Row(
        "early exit of a bound forward",
        lambda: BENCH.generate(bound(), assistant_model=MISSING, assistant_early_exit=1),
        ["LlamaForCausalLM", "its forward was replaced", "Pass an assistant_model"],
    ),
    Row("multi-token heads", generate(use_mtp=True), ["use_mtp=True", "remove"]),
    Row("DFlash draft", generate(speculation_type="dflash"), ["speculation_type='dflash'", "remove"]),
    Row("contrastive search", generate(penalty_alpha=0.6, top_k=4), ["penalty_alpha=0.6", "remove"]),
    Row("forced words", generate(force_words_ids=[[5]]), ["force_words_ids=[[5]]", "remove"]),
    Row("constraints", generate(constraints=["x"]), ["constraints=['x']", "remove"]),
    Row("DoLa", generate(dola_layers="high"), ["dola_layers='high'", "remove"]),
    Row("no cache", generate(use_cache=False), ["use_cache", "must be True"]),
    Row("offloaded cache", generate(cache_implementation="offloaded"), ["'offloaded'", "Remove it"]),
    Row("quantized cache", generate(cache_implementation="quantized"), ["'quantized'", "Remove it"]),
    Row("paged cache", generate(cache_implementation="paged"), ['cache_implementation="paged"', "remove it"]),
    Row("token healing", generate(token_healing=True), ["token_healing", "heal the prompt before the call"]),
    Row("guidance", generate(guidance_scale=1.5), ["guidance_scale", "Classifier", "Drop one"]),
    Row(
        "SynthID",
        generate(watermarking_config=tf.SynthIDTextWatermarkingConfig(keys=[1, 2], ngram_len=3)),
        ["SynthID", "counts its calls", "Drop one"],
    ),
    Row(
        "attentions",
        generate(output_attentions=True, return_dict_in_generate=True),
        ["output_attentions", "run the model on the returned sequences"],
    ),
    Row(
        "hidden states",
        generate(output_hidden_states=True, return_dict_in_generate=True),
        ["output_hidden_states", "run the model on the returned sequences"],
    ),
    Row("hub method", generate(custom_generate="org/repo"), ["custom_generate", "pass one"]),
    Row("another loop", generate(custom_generate=lambda *a, **k: None), ["custom_generate", "pass one"]),
    Row("streamed batch", generate(streamer=Streamer()), ["streamer", "batch size 1", "got 2"]),
    Row("sampling a greedy rule", generate(verifier=GreedyOnly(), do_sample=True), ["GreedyOnly", "do_sample=False"]),
    Row("stop strings alone", generate(stop_strings=["x"]), ["stop_strings", "pass tokenizer="]),
    # inputs
    Row("user cache", generate(past_key_values=tf.DynamicCache()), ["past_key_values", "Pass the whole prompt"]),
    Row(
        "embeddings",
        lambda: BENCH.generate(input_ids=MISSING, inputs_embeds=torch.zeros(2, 6, 32)),
        ["inputs_embeds", "Pass input_ids"],
    ),
    Row(
        "images",
        lambda: BENCH.generate(BENCH.multimodal, pixel_values=torch.zeros(2, 3, 28, 28)),
        ["'pixel_values'", "text only", "Remove it"],
    ),
    Row(
        "image tokens",
        lambda: BENCH.generate(BENCH.multimodal, token_type_ids=torch.eye(2, 6).long()),
        ["'token_type_ids'", "text only", "Remove it"],
    ),
    *(
        Row(
            f"mask {shape}",
            generate(attention_mask=torch.ones(shape, dtype=torch.long)),
            ["attention_mask", "[2, 6]", f"got {shape}", "tokenizer"],
        )
        for shape in ([2, 4], [3, 6], [1, 6], [2, 9])
    ),
    Row(
        "positions of another length",
        generate(position_ids=torch.arange(4).expand(2, -1)),
        ["position_ids", "[2, 6]", "got [2, 4]"],
    ),
    Row(
        "no rows", generate(input_ids=torch.ones(0, 6).long(), attention_mask=MISSING), ["at least one row", "[0, 6]"]
    ),
    Row("ids of a float type", generate(input_ids=torch.ones(2, 6)), ["input_ids", "long or int", "float32"]),
    Row("types of tokens", generate(token_type_ids=types_of_tokens(1)), ["'token_type_ids'", "Remove it"]),
    Row(
        "types of tokens that are looked up",
        lambda: BENCH.generate(tiny.tiny_model("gpt2"), token_type_ids=types_of_tokens(0)),
        ["'token_type_ids'", "Remove it"],
    ),
    Row("no chunk", generate(prefill_chunk_size=0), ["prefill_chunk_size", ">= 1", "got 0"]),
    Row(
        "two tokenizers",
        generate(tokenizer=Words("a", "b"), assistant_tokenizer=Words("b", "a")),
        ["different tokenizers", "same family"],
    ),
    # rules
    Row("head without draft", with_head(assistant_model=MISSING), ["diversed_head", "pass assistant_model="]),
    Row("verifier without draft", generate(assistant_model=None), ["verifier", "pass assistant_model="]),
    Row("head and verifier", generate(diversed_head=BENCH.head), ["diversed_head=", "verifier=", "only one"]),
    Row("unknown rule", generate(verifier="losless"), ["'losless'", *hf_diversed.VERIFIERS]),
    Row("rule without weight", generate(verifier=STATIC), [f"'{STATIC}'", "weight", "needs a value"]),
    Row("no rule at all", generate(verifier=0.7), ["float", "Verifier"], TypeError),
    Row("class, not rule", generate(verifier=StaticEnsembleVerifier), ["Verifier", "type"], TypeError),
    Row("no head at all", with_head(diversed_head=0.7), ["DiversedHead", "float", "from_pretrained"], TypeError),
    Row("another pair's head", with_head(diversed_head=BENCH.wide_head), ["target", "48", "32", "train a head"]),
    Row("records without dict", generate(output_token_records=True), ["output_token_records", "return_dict"]),
    Row("strictness without head", generate(diversed_strictness=0.5), ["diversed_strictness", "pass diversed_head="]),
    Row("bias cap without head", generate(diversed_max_bias=0.1), ["diversed_max_bias", "pass diversed_head="]),
    *(
        Row(f"{name} {value}", with_head(**{f"diversed_{name}": value}), [name, "[0, 1]", str(value), "lossless"])
        for name in ("strictness", "max_bias")
        for value in (1.5, -0.1, float("nan"))
    ),
    Row(
        "strictness of one row in three",
        with_head(diversed_strictness=[0.1, 0.5, 0.9]),
        ["diversed_strictness", "(2)", "got 3"],
    ),
    *(
        Row(f"gamma {value}", generate(num_assistant_tokens=value), ["num_assistant_tokens", ">= 1", f"got {value}"])
        for value in (0, -1, 2.5)
    ),
    # attach checks what it can at once
    Row("attach T5", lambda: hf_diversed.attach(t5(), BENCH.draft, BENCH.head), ["target", "encoder-decoder"]),
    Row("attach a T5 draft", lambda: hf_diversed.attach(BENCH.target, t5(), BENCH.head), ["draft", "encoder-decoder"]),
    Row("attach nothing", lambda: hf_diversed.attach(BENCH.target, BENCH.draft), ["diversed_head=", "verifier="]),
    Row(
        "attach both",
        lambda: hf_diversed.attach(BENCH.target, BENCH.draft, BENCH.head, verifier=LosslessVerifier()),
        ["exactly one"],
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
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name.replace(" ", "-"), marks=row.marks) for row in ROWS])
def test_refused_by_name_before_any_forward(row, monkeypatch):
    """Catches a mode that is ignored, fails during decoding, or raises an error of upstream about something else."""
    if row.patch:
        name, value = row.patch
        monkeypatch.setattr(_compat, name, lambda *args: value)
    with modules_run() as ran, pytest.raises(row.error) as raised:
        row.call()
    assert ran == []
    message = str(raised.value)
    missing = [word for word in row.words if word not in message]
    assert not missing, f"{missing} not in: {message}"


def test_the_valid_call_succeeds():
    """Without its one invalid argument every row's call must succeed and run modules, or the table would prove
    nothing."""
    with modules_run() as ran:
        assert BENCH.generate().shape == (2, 10)
        assert BENCH.with_head(diversed_strictness=[0.1, 0.9]).shape == (2, 10)
        assert BENCH.generate(assistant_model=MISSING, prompt_lookup_num_tokens=3).shape == (2, 10)
        assert BENCH.generate(assistant_model=MISSING, assistant_early_exit=1).shape == (2, 10)
        assert BENCH.generate(BENCH.multimodal, assistant_model=BENCH.multimodal).shape == (2, 10)
    assert {"LlamaForCausalLM", "Gemma3ForConditionalGeneration"} <= set(ran)
    same = Words("a", "b"), Words("a", "b")
    assert BENCH.generate(tokenizer=same[0], assistant_tokenizer=same[1]).shape == (2, 10)


@pytest.mark.parametrize("entry", ["num_beams", "token_healing", "prompt_lookup_num_tokens", "cache_implementation"])
def test_modes_set_in_the_models_own_config(entry, monkeypatch):
    """Catches a check of the call's arguments only: generation configs of checkpoints also select modes."""
    value = {"num_beams": 4, "token_healing": True, "prompt_lookup_num_tokens": 3, "cache_implementation": "paged"}[
        entry
    ]
    own = tf.GenerationConfig(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS)
    setattr(own, entry, value)
    monkeypatch.setattr(BENCH.target, "generation_config", own)
    with modules_run() as ran, pytest.raises(ValueError, match=entry):
        BENCH.generate()
    assert ran == []


# as above
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_prompt_tuning_is_detected_in_peft_generate(monkeypatch):
    """`PeftModel.generate` calls the inner model's `generate`, which must still detect prompt tuning."""
    seen = []
    inner = tf.LlamaForCausalLM.generate
    monkeypatch.setattr(
        tf.LlamaForCausalLM, "generate", lambda self, *a, **k: seen.append(type(self)) or inner(self, *a, **k)
    )
    with pytest.raises(ValueError, match="prompt-learning"):
        BENCH.generate(prompt_tuned())
    assert seen == [tf.LlamaForCausalLM]
