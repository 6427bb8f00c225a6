"""Heads on disk and by name."""

import json
import os

import pytest
import torch
from transformers import AutoModel

from hf_diversed.head import DiversedHead, load_head
from tests.verifier_cases import random_head


@pytest.fixture
def folder(tmp_path):
    random_head("mlp", "both").save_pretrained(tmp_path)
    return tmp_path


def assert_equal_heads(found: DiversedHead, expected: DiversedHead) -> None:
    assert type(found) is DiversedHead
    assert found.state_dict().keys() == expected.state_dict().keys()
    for name, values in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], values), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("load", [DiversedHead.from_pretrained, AutoModel.from_pretrained])
def test_round_trip(load, dtype: torch.dtype, tmp_path):
    """Catches weights that are initialised again after loading, or that change dtype."""
    head = random_head("mlp", "both").to(dtype)
    head.save_pretrained(tmp_path)
    assert_equal_heads(load(tmp_path), head)


def test_writes_safetensors_only(folder):
    """Catches pickles: a head from the Hub must not be able to run code."""
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("load", [DiversedHead.from_pretrained, AutoModel.from_pretrained, load_head])
def test_refuses_pickles(load, folder):
    """Catches a pickle read where the safetensors file is missing."""
    (folder / "model.safetensors").unlink()
    torch.save(random_head("mlp", "both").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"no file named model\.safetensors"):
        load(str(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_hidden_size": 99}, r"input_mean has shape \(\d+,\), must be \(\d+,\)"),
        ({"head_type": "linear"}, "dense.bias is unexpected"),
        ({"model_type": "llama"}, "not the configuration of a head: model_type must be 'diversed_head', got 'llama'"),
    ],
)
@pytest.mark.parametrize("load", [DiversedHead.from_pretrained, load_head])
def test_refuses_other_weights(load, changes, words, folder):
    """Catches a head of other widths, of another type, and another model, whose weights would be random."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=words):
        load(str(folder))


@pytest.mark.parametrize("name", ["/nonexistent/head", "./nonexistent", "~/nonexistent"])
@pytest.mark.parametrize("load", [DiversedHead.from_pretrained, load_head])
def test_names_a_missing_folder(load, name):
    """Catches a path that is refused as a malformed Hub id."""
    with pytest.raises(OSError, match=f"^folder {name} does not exist"):
        load(name)


def test_variants(folder):
    """Catches `variant` that does not reach transformers' loader."""
    head = random_head("mlp", "both")
    torch.nn.init.ones_(head.out.bias)
    head.save_pretrained(folder, variant="fp16")
    assert_equal_heads(DiversedHead.from_pretrained(folder, variant="fp16"), head)
    with pytest.raises(OSError, match=r"model\.other\.safetensors"):
        DiversedHead.from_pretrained(folder, variant="other")


def test_loading_draws_no_random_numbers(folder):
    """Catches a seed that gives other tokens if a call must load its head first."""
    before = torch.get_rng_state()
    DiversedHead.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_dtype_auto_is_the_stored_one(tmp_path):
    """Catches an argument of transformers that is passed on to the configuration."""
    random_head("mlp", "both").bfloat16().save_pretrained(tmp_path)
    assert DiversedHead.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16


def test_cache_keeps_the_object(folder):
    """Catches a head read from disk at every call, and one left in training mode."""
    first = load_head(str(folder))
    assert load_head(str(folder)) is first
    assert not first.training


def test_cache_notices_new_weights(folder):
    """Catches the old head being used after training wrote a new one to the same folder."""
    first = load_head(str(folder))
    other = random_head("mlp", "both")
    torch.nn.init.ones_(other.out.bias)
    other.save_pretrained(folder)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    os.utime(folder / "model.safetensors", ns=(written, written + 10**9))  # file times can be coarse
    second = load_head(str(folder))
    assert second is not first
    assert_equal_heads(second, other)


def test_a_head_that_was_loaded_in_inference_mode_can_be_trained(folder):
    """Catches parameters that autograd refuses, in the head that every later call gets."""
    with torch.inference_mode():
        load_head(str(folder))
    assert not any(values.is_inference() for values in load_head(str(folder)).state_dict().values())
