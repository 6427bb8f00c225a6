"""Unsupported calls of relaxed decoding raise an error with advice, before any module has run."""

import contextlib
import functools
import traceback
import warnings

import peft
import pytest
import torch
import transformers as tf
from torch.nn.modules.module import register_module_forward_pre_hook

import hf_diversed
from hf_diversed import LosslessVerifier, StaticEnsembleVerifier, support
from hf_diversed.generation import checks
from tests import tiny, versions
from tests.families.shrink import small_model
from tests.generation.sources import Copies


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=tiny.VOCAB_SIZE, decoder_start_token_id=0, **sizes))


def llama(**settings):
    """Return a Llama with these settings in its configuration."""
    model = tiny.tiny_model("llama")
    for name, value in settings.items():
        setattr(model.config, name, value)
    return model


def adapted(kind=peft.LoraConfig, **config):
    return peft.get_peft_model(tiny.tiny_model("llama"), kind(task_type="CAUSAL_LM", **config)).eval()


def recomputing():
    model = tiny.tiny_model("llama").train()
    with warnings.catch_warnings():  # the name that all versions know is deprecated
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable()
    return model


def with_more_ids():
    model = tiny.tiny_model("llama")
    model.resize_token_embeddings(tiny.VOCAB_SIZE + 600, mean_resizing=False)
    return model


DYNAMIC = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 2.0}  # changes after 8 ids
# Models of the rows below, by name; created when a row runs.
MODELS = {
    "t5": t5,
    "bidirectional": lambda: llama(use_bidirectional_attention=True),
    "chunked": lambda: llama(attention_chunk_size=8),
    "bloom": lambda: small_model("bloom"),
    "alibi": lambda: llama(alibi=True),
    "bart": lambda: small_model("bart"),
    "inkling": lambda: small_model("inkling_text"),
    "recurrent": lambda: small_model("qwen3_5_text"),
    "prompt tuning": lambda: adapted(peft.PromptTuningConfig, num_virtual_tokens=2),
    "aLoRA": lambda: adapted(alora_invocation_tokens=[5]),
    "LoRA": adapted,
    "flash attention": lambda: llama(_attn_implementation="flash_attention_2"),
    "recomputing": recomputing,
    "more ids": with_more_ids,
    "changing rotation": lambda: llama(rope_parameters=DYNAMIC, max_position_embeddings=8),
    "multimodal": lambda: tiny.tiny_model("gemma3_multimodal"),
    "gpt2": lambda: tiny.tiny_model("gpt2"),
}


class Words:
    """The part of a tokenizer that the tokenizer check uses."""

    all_special_ids, added_tokens_decoder = (), {}

    def __init__(self, *words):
        self.words = {word: index for index, word in enumerate(words)}

    def get_vocab(self):
        return self.words


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


ELSEWHERE = "elsewhere"  # raised by a verifier or by the check of a processor
HEAD = {"diversed_head": tiny.tiny_head(), "verifier": None}
LOOKUP = {"assistant_model": None, "prompt_lookup_num_tokens": 3}
MODES = {"assistant_ensemble_weight": 0.4, "penalty_alpha": 0.6, "force_words_ids": [[5]], "constraints": ["x"]}
MODES |= {"dola_layers": "high", "assistant_early_exit": 1}
IDS, POSITIONS = torch.full((2, 6), 5), torch.arange(6).expand(2, -1)

# An entry of `checks.REFUSED`, keywords of a call, and words of its message: what is wrong, was given, can be done.
ROWS = [
    # models
    ("other model", {"assistant_model": "org/draft"}, "draft; str; from_pretrained"),
    ("no rollback", {"assistant_model": "t5"}, "draft T5ForConditionalGeneration; use a decoder-only"),
    ("no rollback", {"target": "bidirectional"}, "target LlamaForCausalLM; use a causal model"),
    ("no rollback", {"target": "chunked"}, "chunked; full or sliding-window"),
    ("no rollback", {"target": "bloom"}, "BloomForCausalLM; ALiBi"),
    ("no rollback", {"target": "alibi"}, "ALiBi; use rotary positions"),
    ("attention", {"target": "flash attention"}, 'flash_attention_2; attn_implementation="sdpa"'),
    ("gradient checkpointing", {"target": "recomputing"}, "model.eval()"),
    ("prompt learning", {"assistant_model": "prompt tuning"}, "draft; PROMPT_TUNING; LoRA"),
    ("prompt learning", {"target": "prompt tuning"}, "target; PROMPT_TUNING"),
    ("adapters per row", {"target": "aLoRA"}, "alora_offsets; set_adapter"),
    ("adapters per row", {"target": "LoRA", "adapter_names": ["default", "__base__"]}, "adapter_names; set_adapter"),
    ("positions of the batch", {"assistant_model": "bart"}, "draft BartForCausalLM; must be 1, got 2"),
    ("positions of the batch", {"target": "inkling"}, "ignores position_ids; must be 1, got 2"),
    ("rotary frequencies", {"target": "changing rotation"}, "at 8 ids; 'dynamic'; can reach 10; max_new_tokens"),
    ("vocabularies", {"assistant_model": "more ids"}, "64 and 664 ids"),
    ("tokenizers", {"tokenizer": Words("a", "b"), "assistant_tokenizer": Words("b", "a")}, "id 0 is 'a'; 'b' for"),
    # modes
    *(("other modes", {name: value}, f"{name}={value!r}") for name, value in MODES.items()),
    ("beam search", {"num_beams": 3}, "num_beams; got 3"),
    ("cache_implementation", {"cache_implementation": "offloaded"}, "'offloaded'; Pass None"),
    ("synced_gpus", {"synced_gpus": True}, "numbers of rounds"),
    ("custom_generate", {"custom_generate": "org/repo"}, "custom_generate='org/repo'; pass one"),
    ("streamer for a batch", {"streamer": tiny.Listener()}, "batch size 1, got 2"),
    ("stop strings", {"stop_strings": ["x"]}, "pass tokenizer="),
    ("records without dict", {"output_token_records": True}, "return_dict_in_generate=True"),
    ("processors", {"guidance_scale": 1.5}, "guidance_scale; Drop one"),
    (ELSEWHERE, {"logits_processor": [Alternating()]}, "Alternating returns other scores; docs/extending.md"),
    (ELSEWHERE, {"logits_processor": [OneByOne()]}, "OneByOne raises AssertionError; must be a function of input_ids"),
    # inputs
    ("the caller's cache", {"past_key_values": tf.DynamicCache()}, "Pass the whole prompt"),
    ("other inputs", {"input_ids": None, "inputs_embeds": torch.zeros(2, 6, 32)}, "'inputs_embeds'; Remove it"),
    ("other inputs", {"target": "multimodal", "pixel_values": torch.zeros(2, 3, 28, 28)}, "'pixel_values'; Remove it"),
    ("other inputs", {"token_type_ids": torch.ones_like(IDS)}, "'token_type_ids'; Remove it"),
    ("other inputs", {"target": "gpt2", "token_type_ids": torch.zeros_like(IDS)}, "'token_type_ids'; Remove it"),
    ("inputs without tensors", {"input_ids": [[3, 4], [5, 6]]}, "input_ids; got list; return_tensors"),
    ("shapes", {"attention_mask": torch.ones(2, 4).long()}, "attention_mask; [2, 6], got [2, 4]; tokenizer"),
    ("shapes", {"attention_mask": torch.tensor([[1] * 6, [0] * 6])}, "attention_mask; row 1; BOS"),
    ("shapes", {"position_ids": POSITIONS[:, :4]}, "position_ids; [2, 6], got [2, 4]"),
    ("shapes", {"input_ids": IDS[:0], "attention_mask": None}, "at least one row; [0, 6]"),
    # verifiers and heads
    ("arguments without verifier", {"verifier": None, "output_token_records": True}, "diversed_head= or verifier="),
    (
        "arguments without verifier",
        {"verifier": None, "diversed_strictness": 0.0},
        "diversed_strictness; diversed_head=",
    ),
    ("neither head nor verifier", {"verifier": None, "custom_generate": hf_diversed.diversed_decoding}, "VERIFIERS"),
    ("head and verifier", HEAD | {"verifier": "lossless"}, "pass only one"),
    ("no verifier", {"verifier": 0.7}, "got float"),
    ("no verifier", {"verifier": tiny.tiny_head()}, "got DiversedHead; pass heads as diversed_head="),
    ("settings of a head", {"diversed_max_bias": 0.1}, "diversed_max_bias; pass diversed_head="),
    (ELSEWHERE, HEAD | {"diversed_head": tiny.tiny_head(target_hidden_size=48)}, "target; 48; 32; train a head"),
    (ELSEWHERE, HEAD | {"diversed_head": tiny.tiny_head(vocab_size=99)}, "vocabulary of 99 ids, got 64"),
    (ELSEWHERE, HEAD | {"diversed_strictness": 1.5}, "strictness; [0, 1]; 1.5; lossless"),
    (ELSEWHERE, HEAD | {"diversed_max_bias": "0.1"}, "max_bias; must be a number; '0.1'"),
    # draft tokens
    ("no source of draft tokens", {"assistant_model": None}, "pass assistant_model="),
    ("source of draft tokens", {"use_mtp": True}, "assistant_model and use_mtp=True; pass only one"),
    ("source of draft tokens", {"speculation_type": "dflash"}, "block_size; assistant_model=, got LlamaForCausalLM"),
    (
        "source of draft tokens",
        LOOKUP | {"candidate_generator": [Copies()] * 2},
        "prompt_lookup_num_tokens=3 and candidate_generator; pass only one",
    ),
    (
        "copies before a recurrent draft model",
        {"assistant_model": "recurrent", "prompt_lookup_num_tokens": 3},
        "recurrent states; pass only one",
    ),
    ("number of draft tokens", {"num_assistant_tokens": 2.5}, "num_assistant_tokens; >= 1, got 2.5"),
    (ELSEWHERE, HEAD | LOOKUP, "a draft model of hidden size 32, got none, as with prompt lookup"),
    (
        "confidence without draft model",
        LOOKUP | {"verifier": "block:spec_cascade:chow:0.3"},
        "BlockVerifier(verifier=SpecCascadeVerifier(; assistant_model",
    ),
]


@functools.cache
def model(name: str):
    return MODELS[name]()


@functools.cache
def pair():
    return tiny.tiny_model("llama"), tiny.tiny_model("llama", seed=1)


def generate(**call):
    """Generate with the keywords of a row; without any, the call is valid."""
    given = {**tiny.ragged_batch(2, 6), "target": pair()[0], "assistant_model": pair()[1], "verifier": "lossless"}
    given |= {"max_new_tokens": 4, "do_sample": False, **call}
    for role in ("target", "assistant_model"):
        if given[role] in MODELS:
            given[role] = model(given[role])
    return given.pop("target").generate(**given)


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
@pytest.mark.parametrize(("entry", "call", "words"), ROWS)
def test_refused_by_name_before_any_forward(entry, call, words):
    """Catches a mode that is ignored, fails during decoding, or raises an error of upstream about something else."""
    refusal = checks.REFUSED.get(entry)
    with modules_run() as ran, pytest.raises(refusal.error if refusal else ValueError) as raised:
        generate(**call)
    assert ran == []
    missing = [word for word in words.split("; ") if word not in str(raised.value)]
    assert not missing, f"{missing} not in: {raised.value}"
    last = list(traceback.walk_tb(raised.tb))[-1][0]
    raised_by_list = last.f_code is checks.refuse.__code__
    assert (last.f_locals["refusal"] if raised_by_list else None) is refusal


def test_the_loop_refuses_the_callers_cache():
    """Catches a cache that only the hook refuses. Before transformers 5.17 it is recognized by its length."""
    cache = tf.DynamicCache()
    cache.update(*torch.zeros(2, 2, 2, 3, 8), layer_idx=0)
    ours = functools.partial(hf_diversed.diversed_decoding, assistant_model=pair()[1], verifier=LosslessVerifier())
    with pytest.raises(ValueError, match="the caller's cache"):
        pair()[0].generate(
            **tiny.ragged_batch(2, 6), max_new_tokens=4, custom_generate=ours, **{support.CACHE_ARGUMENT: cache}
        )


def test_every_entry_has_a_row():
    """Catches an entry that no call can reach."""
    assert {entry for entry, *_ in ROWS} - {ELSEWHERE} == set(checks.REFUSED)
    parts = checks.WITHOUT_VERIFIER, checks.GENERATE, checks.MODELS, checks.VERIFIERS, checks.CALLS
    assert sum(map(len, parts)) == len(checks.REFUSED)  # names are unique


@pytest.mark.parametrize(
    ("head", "given", "error", "words"),
    [
        (None, {"verifier": StaticEnsembleVerifier(0.5), "draft": t5}, ValueError, "draft .* encoder-decoder"),
        (None, {}, ValueError, "diversed_head=.*verifier="),
        (tiny.tiny_head(), {"strictness": 0.5}, TypeError, r"unknown settings \['strictness'\].*diversed_strictness"),
    ],
)
def test_attach_checks_what_it_can_at_once(head, given, error, words):
    """Catches an attachment that fails only in the first call of its block."""
    draft = given.pop("draft")() if "draft" in given else pair()[1]
    with pytest.raises(error, match=words):
        hf_diversed.attach(pair()[0], draft, head, **given).__enter__()


def test_the_valid_call_succeeds():
    """Without its invalid argument every call of the table must succeed, or the table would prove nothing."""
    with modules_run() as ran:
        for call in ({}, HEAD | {"diversed_strictness": [0.1, 0.9]}, LOOKUP):
            assert generate(**call).shape == (2, 10)
        assert generate(verifier=None, assistant_model=None, output_token_records=False).shape == (2, 10)
        assert generate(target="multimodal", assistant_model="multimodal").shape == (2, 10)
    assert {"LlamaForCausalLM", "Gemma3ForConditionalGeneration"} <= set(ran)
    assert generate(tokenizer=Words("a", "b"), assistant_tokenizer=Words("a", "b")).shape == (2, 10)


@pytest.mark.parametrize(
    ("entry", "value"),
    [("num_beams", 4), ("cache_implementation", "paged"), ("stop_strings", "w5")],
)
def test_modes_set_in_the_models_own_config(entry, value, monkeypatch):
    """Catches a check of the call's arguments only: generation configs of checkpoints also select modes."""
    own = tf.GenerationConfig(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS)
    setattr(own, entry, value)
    monkeypatch.setattr(pair()[0], "generation_config", own)
    with modules_run() as ran, pytest.raises(ValueError, match=entry):
        generate()
    assert ran == []


def test_a_checkpoint_without_a_cache(monkeypatch):
    """Catches `use_cache: false` of a checkpoint, left by gradient checkpointing, as a setting of the call."""
    own = tf.GenerationConfig(pad_token_id=tiny.PAD, eos_token_id=tiny.EOS, use_cache=False)
    expected = generate()
    monkeypatch.setattr(pair()[0], "generation_config", own)
    assert torch.equal(generate(), expected)


def test_two_versions_of_one_tokenizer_are_accepted():
    """Catches a comparison of sizes or of renamed special tokens: a chat model may have more tokens."""
    first, second = tiny.word_tokenizer(), tiny.word_tokenizer()
    first.add_special_tokens({"additional_special_tokens": ["<|user|>"]})
    second.add_special_tokens({"additional_special_tokens": ["<|person|>"]})
    checks.check_tokenizers(first, second)
    first.add_tokens(["more"])
    checks.check_tokenizers(first, second)
