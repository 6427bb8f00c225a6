"""Models whose rotary frequencies depend on the longest position of a forward: longrope (Phi-3) and dynamic NTK.

A block that crosses the length at which they change would be scored with other frequencies than plain decoding uses.
"""

import pytest
import torch
import transformers as tf

from hf_diversed.generation import ragged_model
from tests import versions
from tests.generation import sources
from tests.tiny import PAD, VOCAB_SIZE, ragged_batch, sharpen, tiny_draft, tiny_head


LIMIT = 32
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": LIMIT}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
# Older releases continue from the last token alone where they discard the cache.
PHI3 = pytest.param("phi3", marks=versions.since("5.20", "loses Phi-3's text at the limit"))


def model(kind: str, seed: int = 0):
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "tie_word_embeddings": False, "pad_token_id": PAD, "eos_token_id": None}
    rope = {"rope_theta": 10000.0, **(DYNAMIC if kind == "dynamic" else LONGROPE)}
    torch.manual_seed(seed)
    sizes |= {"rope_parameters": rope, "max_position_embeddings": LIMIT if kind == "dynamic" else 2 * LIMIT}
    if kind == "phi3":
        config = tf.Phi3Config(**sizes, num_key_value_heads=2, original_max_position_embeddings=LIMIT)
        found = tf.Phi3ForCausalLM(config).eval()
    else:
        found = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes)).eval()
    sharpen(found)
    found.generation_config = tf.GenerationConfig(pad_token_id=PAD)
    return found


def lossless(target, *args, **kwargs):
    return target.generate(*args, **kwargs, assistant_model=tiny_draft(target), verifier="lossless")


@pytest.mark.filterwarnings("ignore:.*rotary")
@pytest.mark.parametrize("length", [20, LIMIT - 1, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("kind", ["longrope", PHI3, "dynamic"])
def test_lossless_decoding_is_plain_decoding_across_the_limit(kind, length):
    """Catches blocks across the limit, and keys of a prompt that are rotated without its last token."""
    for seed in range(2):
        target, ids = model(kind, seed), ragged_batch(1, length, seed=seed)["input_ids"]
        call = {"do_sample": False, "max_new_tokens": 20}
        plain = model(kind, seed).generate(ids, **call)  # a model of its own: dynamic NTK leaves traces
        ours = lossless(target, ids, **call, num_assistant_tokens=4, return_dict_in_generate=True)
        assert torch.equal(ours.sequences, plain)
        assert ours.stats.num_accepted > 0 or kind == "dynamic"


@pytest.mark.filterwarnings("ignore:.*rotary")
@pytest.mark.parametrize("kind", ["longrope", PHI3])
def test_padded_prompts_across_the_limit(kind):
    """Catches a cache that is recomputed where the positions pass the limit: upstream counts the padding as well."""
    for seed in range(2):
        target, inputs = model(kind, seed), ragged_batch(1, LIMIT - 3, seed=seed)
        inputs["input_ids"][:, :3], inputs["attention_mask"][:, :3] = PAD, 0
        call = {**inputs, "do_sample": False, "max_new_tokens": 24}
        assert torch.equal(lossless(target, **call, num_assistant_tokens=4), target.generate(**call))


def test_static_shapes_are_not_used_across_the_limit():
    """Catches rounds of fixed width, which cannot end at the limit."""
    target, ids = model("longrope"), ragged_batch(1, 24)["input_ids"]
    call = {"do_sample": False, "max_new_tokens": 20}
    plain = target.generate(ids, **call)
    ours = lossless(target, ids, **call, cache_implementation="static", return_dict_in_generate=True)
    assert torch.equal(ours.sequences, plain)
    assert ours.stats.engine == "eager"


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_batches_across_the_limit_are_refused(kind):
    """Catches rows that are scored with the frequencies of a longer row; within the limit there is no error."""
    target, inputs = model(kind), ragged_batch(3, 24)
    with pytest.raises(ValueError, match=rf"changes its rotary frequencies at {LIMIT} ids.*batch size must be 1"):
        lossless(target, **inputs, max_new_tokens=LIMIT - 24 + 1)
    call = {**inputs, "do_sample": False, "max_new_tokens": LIMIT - 24}
    assert torch.equal(lossless(target, **call), target.generate(**call))


def test_batches_beyond_the_limit_are_supported():
    """Catches an error for prompts that all have the long factors from the start."""
    target = model("longrope")
    ids = ragged_batch(2, LIMIT + 1)["input_ids"]
    ids[ids == PAD] = 5
    call = {"do_sample": False, "max_new_tokens": 12}
    assert torch.equal(lossless(target, ids, **call), target.generate(ids, **call))


def test_candidate_generators_that_need_every_round_are_refused():
    """Catches a round without draft tokens at the limit, after which such a generator drafts for another text."""
    target, ids = model("longrope"), ragged_batch(1, 24)["input_ids"]
    call = {"verifier": "lossless", "do_sample": True, "return_dict_in_generate": True}
    call["candidate_generator"] = sources.FromStates(target)
    with pytest.raises(ValueError, match=r"rotary frequencies change .* do not support\. Lower max_new_tokens"):
        target.generate(ids, **call, max_new_tokens=LIMIT - 24 + 1)
    out = target.generate(ids, **call, max_new_tokens=LIMIT - 24)
    assert out.sequences.shape[1] == LIMIT
    assert out.stats.num_drafted > 0


def test_other_candidate_generators_across_the_limit():
    """Catches an error for generators that read the text only, and their candidates across the limit."""
    target, ids = model("longrope"), ragged_batch(1, 24)["input_ids"]
    call = {"do_sample": False, "max_new_tokens": 20}
    settings = {"verifier": "lossless", "candidate_generator": sources.Copies(), "return_dict_in_generate": True}
    out = target.generate(ids, **call, **settings)
    assert torch.equal(out.sequences, target.generate(ids, **call))
    assert out.stats.num_drafted > 0


def test_padding_is_not_skipped_beyond_the_limit(monkeypatch):
    """Catches a forward over the first columns only, which rotates their keys with the short factors."""
    monkeypatch.setattr(ragged_model, "MIN_SKIPPED_PADDING", 1)
    target, inputs = model("longrope"), ragged_batch(2, LIMIT + 9)
    inputs["input_ids"][inputs["attention_mask"] == 0] = 5
    inputs["attention_mask"][:] = 1
    inputs["input_ids"][1, :8], inputs["attention_mask"][1, :8] = PAD, 0
    call = {**inputs, "do_sample": False, "max_new_tokens": 12}
    assert torch.equal(lossless(target, **call), target.generate(**call))


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*rotary")
def test_growing_tables_are_left_alone():
    """Catches a view that shares buffers with its model, but not their counters: dynamic NTK grew on the view."""
    target = model("dynamic")
    short, long = (ragged_batch(1, length)["input_ids"] for length in (6, LIMIT + 8))
    before = target(short).logits
    call = {"do_sample": False, "max_new_tokens": 12, "diversed_head": tiny_head()}
    target.generate(long, **call, assistant_model=tiny_draft(target))
    assert torch.equal(target(short).logits, before)
