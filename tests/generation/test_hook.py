"""What `import hf_diversed` changes about `generate`, and what it leaves alone."""

import functools
import inspect

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin

import hf_diversed
from hf_diversed.generation.checks import HEAD_SETTINGS
from tests.tiny import PAD, SAMPLED, ragged_batch


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
    assert {"diversed_head", "verifier", *HEAD_SETTINGS} <= set(names)
    assert set(inspect.signature(stock).parameters) < set(names)


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
