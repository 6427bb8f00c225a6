"""What `import hf_diversed` changes about `generate`, and what it leaves alone."""

import copy
import functools
import inspect
import os
import subprocess
import sys

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin

import hf_diversed
from hf_diversed.generation.hook import HEAD_SETTINGS
from tests.tiny import PAD, SAMPLED, ragged_batch, tiny_head


def test_without_our_arguments_nothing_changes(pair):
    """Invariant 9. Catches a hook that changes arguments, random numbers or outputs of other calls."""
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
    assert {"diversed_head", "verifier", *HEAD_SETTINGS.values()} <= set(names)
    assert set(inspect.signature(stock).parameters) < set(names)


def test_environment_variable_opts_out():
    """Catches an import that patches in spite of HF_DIVERSED_NO_HOOK=1."""
    code = "from transformers import GenerationMixin as G; g = G.generate; import hf_diversed; assert G.generate is g"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "HF_DIVERSED_NO_HOOK": "1"}, check=True)


def test_wrapped_by_others(pair):
    """Catches a hook that removes another library's wrapper."""
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


def test_refusals_of_what_would_be_ignored(pair, tmp_path):
    """Catches options without a verifier, rows without a value, and models that do not form a pair."""
    target, draft = pair
    call = {**ragged_batch(), "assistant_model": draft, "max_new_tokens": 4}
    with pytest.raises(ValueError, match="pass diversed_head= or verifier="):
        target.generate(**call, output_token_records=True)
    for strictness in (0.0, torch.tensor([0.5])):
        with pytest.raises(ValueError, match="diversed_strictness requires a verifier"):
            target.generate(**call, diversed_strictness=strictness)
    prompt = {"input_ids": ragged_batch()["input_ids"][:1], "assistant_model": draft, "max_new_tokens": 4}
    assert target.generate(**prompt, output_token_records=False).shape == (1, 13)
    with pytest.raises(ValueError, match=r"one per prompt \(4\), got 2"):
        target.generate(**call, diversed_head=tiny_head(), diversed_strictness=[0.0, 1.0])
    with pytest.raises(ValueError, match="vocabulary of 99 ids, got 64"):
        target.generate(**call, diversed_head=tiny_head(vocab_size=99))
    other_draft = copy.deepcopy(draft)
    other_draft.resize_token_embeddings(64 + 600, mean_resizing=False)
    with pytest.raises(ValueError, match="64 and 664 ids"):
        target.generate(**{**call, "assistant_model": other_draft}, verifier="lossless")
    tiny_head().save_pretrained(tmp_path)
    assert target.generate(**call, diversed_head=tmp_path).shape[0] == 4  # a pathlib.Path is a folder too
