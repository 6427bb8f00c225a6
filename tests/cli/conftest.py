"""Fixture: a pair in folders, for use with commands."""

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_diversed.zoo.loader import WEIGHTS


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny pair with a tokenizer that has a chat template."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS / "tokenizer")
    tokenizer.chat_template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    for seed, name in enumerate(("target", "draft")):
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
        LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ids)).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder
