"""Heads on disk and by name."""

import os

import pytest
import torch
from transformers import AutoModel

from hf_diversed.head import DiversedHead, load_head, loading
from tests.verifier_cases import random_head


@pytest.fixture
def folder(tmp_path):
    random_head("mlp", "both").save_pretrained(tmp_path)
    return tmp_path


def assert_same(found: DiversedHead, expected: DiversedHead) -> None:
    assert type(found) is DiversedHead
    assert found.state_dict().keys() == expected.state_dict().keys()
    for name, values in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], values), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("load", [DiversedHead.from_pretrained, AutoModel.from_pretrained])
def test_round_trip(load, dtype: torch.dtype, tmp_path):
    """Catches weights that are initialised again after loading, or change dtype on the way."""
    head = random_head("mlp", "both").to(dtype)
    head.save_pretrained(tmp_path)
    assert_same(load(tmp_path), head)


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


def test_loading_draws_no_random_numbers(folder):
    """Catches a seed that gives other tokens when a call has to load its head first."""
    before = torch.get_rng_state()
    DiversedHead.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_cache_keeps_the_object(folder):
    """Catches a head read from disk at every call, and one left in training mode."""
    first = load_head(str(folder))
    assert load_head(str(folder)) is first
    assert not first.training


def test_cache_notices_new_weights(folder):
    """Catches the old head served after training wrote a new one to the same folder."""
    first = load_head(str(folder))
    other = random_head("mlp", "both")
    torch.nn.init.ones_(other.out.bias)
    other.save_pretrained(folder)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    os.utime(folder / "model.safetensors", ns=(written, written + 10**9))  # coarse clocks: never the same instant
    second = load_head(str(folder))
    assert second is not first
    assert_same(second, other)


def test_empty_folder_is_refused_by_name(tmp_path):
    """Catches an empty sequence's error where the folder is what is wrong."""
    with pytest.raises(OSError, match="no file named"):
        load_head(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "repo_id", "revision"), [("org/head", "org/head", "main"), ("org/head@v1", "org/head", "v1")]
)
def test_names_carry_a_revision(name: str, repo_id: str, revision: str, monkeypatch):
    """Catches a pinned revision that is dropped: the newest head would be used in its place."""
    asked = []

    def from_pretrained(name, revision, **kwargs):
        asked.append((name, revision))
        return random_head()

    monkeypatch.setattr(loading.DiversedHead, "from_pretrained", from_pretrained)
    loading._load.cache_clear()
    load_head(name)
    loading._load.cache_clear()  # the stand-in must not outlive this test
    assert asked == [(repo_id, revision)]
