"""Pairs by name: `hf_diversed.zoo.load_pair`."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from hf_diversed.evaluation.decoder import Decoder, Method, Sampling, build_methods
from hf_diversed.generation.recording import record_stats
from hf_diversed.zoo import load_pair


def test_dtype_and_device_of_the_embedded_pair():
    """Catches a dtype that applies to named models only, and a head that is not moved or decides in half precision."""
    pair = load_pair(device="meta", dtype="bfloat16")
    assert (pair.target.dtype, pair.target.device.type) == (torch.bfloat16, "meta")
    assert {(head.device.type, head.dtype) for head in pair.heads.values()} == {("meta", torch.float32)}
    assert load_pair(device="cpu").draft.dtype is torch.float32


def test_another_tokenizer_is_refused_before_models_load(folder, tmp_path, monkeypatch):
    """Catches gigabytes that are loaded for a pair with two tokenizers."""
    tokenizer = load_pair(device="cpu").tokenizer
    spelled = json.loads(tokenizer.backend_tokenizer.to_str())
    size = len(tokenizer)
    spelled["model"]["vocab"] = {token: size - 1 - index for token, index in spelled["model"]["vocab"].items()}
    spelled["added_tokens"] = []
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spelled))).save_pretrained(tmp_path)
    monkeypatch.setattr("hf_diversed.zoo.loader.load_model", None)
    with pytest.raises(ValueError, match="have different tokenizers: id"):
        load_pair(str(folder / "target"), str(tmp_path))


def test_methods_with_prompt_lookup(folder):
    """Catches a method that requires a draft model, and one that decodes plainly under a verifier's name."""
    pair = load_pair(str(folder / "target"), "lookup", "cpu")
    assert (type(pair.target), pair.draft) == (LlamaForCausalLM, None)
    decoder = Decoder(pair, Sampling(temperature=0.0, num_assistant_tokens=3, max_new_tokens=12, batch_size=2))
    prompts = [[5, 6, 7, 8, 5, 6], [9, 9, 9, 9]]
    plain, lossless, static = build_methods(["target", "lossless", "static:0.0"])
    reference = decoder(plain, prompts, seed=0)
    assert decoder(lossless, prompts, seed=0).tokens == reference.tokens
    upstream = decoder(Method("upstream", upstream=True), prompts[:1], seed=0)
    assert upstream.tokens == decoder(plain, prompts[:1], seed=0).tokens
    with record_stats() as stats:
        copied = decoder(static, prompts, seed=0)
    assert copied.tokens[1][0] == 9  # at weight 0 the copied token is emitted
    assert stats.num_drafted == stats.num_accepted > 0
    assert stats.draft_forwards == 0
