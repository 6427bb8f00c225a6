"""Models whose layers are on several devices, or counted differently, are decoded like any other."""

import copy

import accelerate
import pytest
import torch
import transformers as tf

from tests import versions
from tests.tiny import BOS, EOS, PAD, VOCAB_SIZE, ragged_batch, sharpen, tiny_draft, tiny_head, tiny_model


GREEDY = {"max_new_tokens": 12, "do_sample": False}


def on_cpu(target, folder):
    return accelerate.cpu_offload(copy.deepcopy(target), execution_device=torch.device("cpu"))


def on_disk(target, folder):
    target.save_pretrained(folder / "model")
    places = {"model": "disk", "lm_head": "cpu"}
    return type(target).from_pretrained(folder / "model", device_map=places, offload_folder=folder / "layers")


@versions.MAY_WARN_OF_OFFLOADING
@pytest.mark.parametrize("offload", [on_cpu, on_disk])
@pytest.mark.parametrize("offloaded", ["target", "draft"])
def test_offloaded_models(pair, offload, offloaded, tmp_path):
    """Catches inputs sent to "meta", the apparent device of an offloaded model's parameters."""
    models = dict(zip(("target", "draft"), pair))
    expected = models["target"].generate(**ragged_batch(), **GREEDY)
    models[offloaded] = offload(models[offloaded], tmp_path)
    models[offloaded].generation_config = pair[0].generation_config
    assert models[offloaded].device.type == "meta"
    ours = models["target"].generate(**ragged_batch(), **GREEDY, assistant_model=models["draft"], verifier="lossless")
    assert torch.equal(ours, expected)


@versions.MAY_WARN_OF_OFFLOADING
def test_a_head_by_name_is_on_the_device_of_an_offloaded_target(pair, tmp_path):
    """Catches a head on "meta", where it has no weights."""
    tiny_head().save_pretrained(tmp_path / "head")
    call = {**ragged_batch(), **GREEDY, "assistant_model": pair[1], "diversed_head": str(tmp_path / "head")}
    target = on_cpu(pair[0], tmp_path)
    target.generation_config = pair[0].generation_config
    assert torch.equal(target.generate(**call), pair[0].generate(**call))


def test_a_decoder_is_counted_by_its_own_layers():
    """Catches `num_hidden_layers`, which in Bart's configuration is the number of encoder layers."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "max_position_embeddings": 128}
    ids = {"pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS, "vocab_size": VOCAB_SIZE}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "is_decoder": True, "is_encoder_decoder": False}
    target = tf.BartForCausalLM(tf.BartConfig(**sizes, **ids, **layers, tie_word_embeddings=False)).eval()
    target.generation_config = tiny_model().generation_config
    sharpen(target)
    for row in ragged_batch(3)["input_ids"]:
        plain = target.generate(row[None], **GREEDY, use_cache=False)  # upstream's own cache trips over it, too
        ours = target.generate(row[None], **GREEDY, assistant_model=tiny_draft(target), verifier="lossless")
        assert torch.equal(ours, plain)


def test_compiled_drafts_are_recognised(pair):
    """Catches a check by class that refuses the wrapper of torch.compile."""
    target, draft = pair
    compiled, call = (
        torch.compile(draft, backend="eager"),
        {**ragged_batch(1), "max_new_tokens": 3, "do_sample": False},
    )
    ours = target.generate(**call, assistant_model=compiled, verifier="lossless")
    assert torch.equal(ours, target.generate(**call))
