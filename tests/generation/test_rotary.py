"""Models whose rotary frequencies depend on the longest position of a forward: longrope (Phi-3) and dynamic NTK.

A block that crosses the length at which they change would be scored with other frequencies than plain decoding uses.
Calls that can reach it are refused.
"""

import pytest
import torch
import transformers as tf

from tests.tiny import PAD, VOCAB_SIZE, ragged_batch, sharpen, tiny_draft


LIMIT = 32
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": LIMIT}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


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


@pytest.mark.parametrize("length", [20, LIMIT, LIMIT + 1])
@pytest.mark.parametrize("kind", ["longrope", "phi3", "dynamic"])
def test_calls_across_the_limit_are_refused(kind, length):
    """Catches blocks that are scored with other frequencies than plain decoding uses."""
    target, ids = model(kind), ragged_batch(1, length)["input_ids"]
    with pytest.raises(ValueError, match=rf"changes its rotary frequencies at {LIMIT} ids.*; lower max_new_tokens"):
        lossless(target, ids, max_new_tokens=max(LIMIT - length, 0) + 1)


@pytest.mark.parametrize("kind", ["longrope", "phi3", "dynamic"])
def test_calls_within_the_limit(kind):
    """Catches an error for texts that end at the limit."""
    target, inputs = model(kind), ragged_batch(3, 24)
    call = {**inputs, "do_sample": False, "max_new_tokens": LIMIT - 24}
    assert torch.equal(lossless(target, **call), target.generate(**call))


def test_batches_beyond_the_limit_are_supported():
    """Catches an error for prompts that all have the long factors from the start."""
    target = model("longrope")
    ids = ragged_batch(2, LIMIT + 2)["input_ids"]
    ids[ids == PAD] = 5
    call = {"do_sample": False, "max_new_tokens": 12}
    assert torch.equal(lossless(target, ids, **call), target.generate(ids, **call))
