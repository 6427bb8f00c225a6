"""Heads on disk and by name."""

import math
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
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


def _with(folder, name: str, values: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: values}, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("out.weight", math.nan, "out.weight must be finite"),
        ("dense.weight", -math.inf, "dense.weight must be finite"),
        ("input_mean", math.nan, "input_mean must be finite"),
        ("input_std", 0.0, "input_std must be above 0, as inputs are divided by it"),
        ("out.weight", 3e37, "parameters are so large that the head's output overflows float32"),
        ("input_std", 1e-38, "parameters are so large that the head's output overflows float32"),
    ],
)
def test_parameters_with_nan_outputs_are_refused(folder, name, value, words):
    """Catches a head whose output is NaN, also with finite parameters that overflow."""
    values = load_file(folder / "model.safetensors")[name]
    values.view(-1)[-1] = value
    _with(folder, name, values)
    with pytest.raises(OSError, match=rf"model\.safetensors of .* cannot be used as torch\.float32: {words}"):
        AutoModel.from_pretrained(folder)


def test_parameters_are_checked_in_their_dtype(folder):
    """Catches weights that are finite in the file only, and a deviation that half precision rounds to zero."""
    _with(folder, "input_std", load_file(folder / "model.safetensors")["input_std"] * 1e-9)
    DiversedHead.from_pretrained(folder)
    with pytest.raises(OSError, match=r"cannot be used as torch\.float16: input_std must be above 0"):
        DiversedHead.from_pretrained(folder, dtype=torch.float16)


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64, torch.float8_e4m3fn, torch.bool])
def test_other_types_of_numbers_are_refused(folder, kind):
    """Catches weights that are cast silently: integers, or the real part of complex numbers."""
    _with(folder, "out.bias", torch.zeros(1).to(kind))
    with pytest.raises(OSError, match=r"out\.bias is of type \w+, must be one of F16, BF16, F32, F64"):
        DiversedHead.from_pretrained(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda good: good[:-1] + b', "j": "' + b"x" * 2**20 + b'"}', "bytes, expected 0 to 1,048,576"),
        (lambda good: good[:-1] + b', "j": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "nested too deeply"),
        (lambda good: good[:40], "is not valid JSON"),
        (lambda good: b"\xff" + good, "is not valid JSON"),
        (lambda good: b"[]", "must be 'diversed_head', got None"),
        (lambda good: good.replace(b"diversed_head", b"llama"), "must be 'diversed_head', got 'llama'"),
    ],
)
def test_broken_configurations_are_reported(folder, content, words):
    """Catches tracebacks of the JSON reader, and a file that fills the memory before it is checked."""
    path = folder / "config.json"
    path.write_bytes(content(path.read_bytes().rstrip()))
    with pytest.raises(OSError, match=words):
        DiversedHead.from_pretrained(folder)


@pytest.mark.parametrize("name", [None, 3, ["a"], b"head"])
def test_names_are_text_or_paths(name):
    """Catches a number interpreted as a file descriptor, or as an id of the Hub."""
    with pytest.raises(TypeError, match=f"given as a folder or an id of the Hub, got {re.escape(repr(name))}"):
        DiversedHead.from_pretrained(name)


def test_a_folder_has_no_revisions(folder):
    """Catches a revision that is ignored, and a strictness given like one."""
    with pytest.raises(ValueError, match=r"is a folder, which has no revisions, .* leave out @0\.9"):
        load_head(f"{folder}@0.9")


def test_a_head_may_be_written_over_its_own_file(folder):
    """Catches weights that share memory with the file, so that saving the head again would change them."""
    head = DiversedHead.from_pretrained(folder)
    before = {name: values.clone() for name, values in head.state_dict().items()}
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\0" * path.stat().st_size)
    assert all(torch.equal(values, before[name]) for name, values in head.state_dict().items())


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


def test_cache_notices_weights_that_are_older_than_other_files(folder, tmp_path):
    """Catches a cache that compares the newest time only: `mv` keeps the time of a file."""
    other = random_head("mlp", "both")
    torch.nn.init.ones_(other.out.bias)
    other.save_pretrained(tmp_path / "other")
    (folder / "config.json").touch()
    first = load_head(str(folder))
    os.replace(tmp_path / "other" / "model.safetensors", folder / "model.safetensors")
    second = load_head(str(folder))
    assert second is not first
    assert_equal_heads(second, other)


def test_cache_ignores_other_files(folder):
    """Catches a head that is read again for an unrelated file, and an error for a link without a target."""
    first = load_head(str(folder))
    (folder / "notes.txt").touch()
    (folder / "broken").symlink_to(folder / "missing")
    assert load_head(str(folder)) is first


def test_an_empty_name_is_no_folder(folder, monkeypatch):
    """Catches the head of the current folder in place of an error."""
    monkeypatch.chdir(folder)
    with pytest.raises(OSError, match="'' is neither a folder nor an id of the Hub"):
        load_head("")


def test_heads_are_loaded_one_at_a_time(folder, tmp_path, monkeypatch):
    """Catches two threads that load heads: transformers replaces global functions while it loads."""
    running, counts, load = [], [], DiversedHead.from_pretrained

    def slow(name, **kwargs):
        running.append(name)
        time.sleep(0.1)
        counts.append(len(running))
        running.remove(name)
        return load(name, **kwargs)

    monkeypatch.setattr(DiversedHead, "from_pretrained", slow)
    other = shutil.copytree(folder, tmp_path / "other")
    with ThreadPoolExecutor(2) as threads:
        heads = list(threads.map(load_head, map(str, (folder, other))))
    assert heads[0] is not heads[1]
    assert counts == [1, 1]


def test_a_head_that_was_loaded_in_inference_mode_can_be_trained(folder):
    """Catches parameters that autograd refuses, in the head that every later call gets."""
    with torch.inference_mode():
        load_head(str(folder))
    assert not any(values.is_inference() for values in load_head(str(folder)).state_dict().values())
