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


def test_round_trip(tmp_path):
    """Catches weights that are initialised again after loading, or that change dtype; arguments that do not reach
    transformers' loader; and a seed that gives other tokens if a call must load its head first."""
    head = random_head("mlp", "both").bfloat16()
    torch.nn.init.ones_(head.out.bias)
    head.save_pretrained(tmp_path)
    before = torch.get_rng_state()
    for load in (DiversedHead.from_pretrained, AutoModel.from_pretrained):
        assert_equal_heads(load(tmp_path), head)
    assert torch.equal(torch.get_rng_state(), before)
    assert DiversedHead.from_pretrained(tmp_path, dtype=torch.float32).dtype is torch.float32


def test_refuses_pickles(folder):
    """Catches pickles that are written, or read where the safetensors file is missing: a head from the Hub must not be
    able to run code."""
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    (folder / "model.safetensors").unlink()
    torch.save(random_head("mlp", "both").state_dict(), folder / "pytorch_model.bin")
    for load in (DiversedHead.from_pretrained, AutoModel.from_pretrained, load_head):
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            load(str(folder))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_hidden_size": 99}, "dense.weight, input_mean, input_std are missing"),
        ({"head_type": "linear"}, "configuration: dense.bias, dense.weight"),
    ],
)
def test_refuses_other_weights(changes, words, folder):
    """Catches a head of other widths and of another type, whose weights would be random."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=words):
        load_head(str(folder))


def test_names_a_missing_folder():
    """Catches a path that is refused as a malformed Hub id."""
    for name in ("/nonexistent/head", "./nonexistent", "~/nonexistent"):
        with pytest.raises(OSError, match=f"^folder {name} does not exist"):
            load_head(name)


def test_cache(folder):
    """Catches a head read from disk at every call, one left in training mode, parameters that autograd refuses, and
    the old head being used after training wrote a new one to the same folder."""
    with torch.inference_mode():
        first = load_head(str(folder))
    assert load_head(str(folder)) is first
    assert not first.training
    assert not any(values.is_inference() for values in first.state_dict().values())
    other = random_head("mlp", "both")
    torch.nn.init.ones_(other.out.bias)
    other.save_pretrained(folder)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    os.utime(folder / "model.safetensors", ns=(written, written + 10**9))  # file times can be coarse
    second = load_head(str(folder))
    assert second is not first
    assert_equal_heads(second, other)
