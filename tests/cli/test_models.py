"""Device of the pair: the one that is given, or the best one."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from transformers import BloomConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_diversed import DiversedHead
from hf_diversed.cli import models
from hf_diversed.cli.training import call


@pytest.fixture
def moves(monkeypatch):
    """Record class and device of every `.to(device)` without moving anything, so that any device works."""
    found = []

    def to(module, device, *_, **__):
        found.append((type(module), str(device)))
        return module

    monkeypatch.setattr(torch.nn.Module, "to", to)
    monkeypatch.setattr(models, "check_device", lambda device: None)
    return found


@pytest.mark.parametrize(("rank", "visible", "device"), [(None, 8, "cuda:0"), ("3", 8, "cuda:3"), ("3", 1, "cuda:0")])
def test_processes_of_one_machine_take_a_gpu_each(rank, visible, device, monkeypatch):
    """Catches a launch that loads all pairs onto the first GPU, also where one GPU is visible per process."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert models.best_device() == device


@pytest.mark.parametrize("device", ["cuda:1", None])
def test_the_embedded_pair_is_moved_to_the_device(device, moves, monkeypatch):
    """Catches a --device that applies to named pairs only, and heads that are not moved."""
    monkeypatch.setattr(models, "best_device", lambda: "mps")
    models.load_pair(None, None, device)
    assert {where for _, where in moves} == {device or "mps"}
    kinds = [kind for kind, _ in moves]
    assert kinds.count(LlamaForCausalLM) == 2
    assert kinds.count(DiversedHead) == len(models.load_demo_pair().heads)


def test_training_has_the_embedded_pair_on_its_own_device(moves, monkeypatch, tmp_path):
    """Catches a head that trains on another device than its pair."""

    class Built(Exception):
        pass

    def build(*args, **kwargs):
        raise Built

    monkeypatch.setattr("hf_diversed.cli.train.DiversedTrainer", build)
    monkeypatch.setattr("transformers.TrainingArguments.device", torch.device("cuda:1"))
    monkeypatch.setattr("transformers.TrainingArguments.process_index", 0)
    monkeypatch.setattr("transformers.TrainingArguments.world_size", 1)
    options = ["--num-examples", "4", "--num-eval-examples", "4", "--output_dir", str(tmp_path)]
    with pytest.raises(Built):
        call(["--task", "math", *options])
    assert [where for kind, where in moves if kind is LlamaForCausalLM] == ["cuda:1"] * 2


def test_chat_without_a_template_is_refused_before_models_load(tmp_path):
    """Catches minutes of loading before an error; there are no models in this folder."""
    tokenizer = models.load_pair(None, None, "cpu").tokenizer
    tokenizer.save_pretrained(tmp_path)
    for name in (None, str(tmp_path)):
        with pytest.raises(ValueError, match="chat prompts need a chat template"):
            models.load_pair(name, name, "cpu", chat=True)


def shapes(folder, tokenizer, config) -> str:
    """A model with configuration and tokenizer only, so that loading its weights fails."""
    config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return str(folder)


def llama(**sizes) -> LlamaConfig:
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(**small | sizes)


def test_models_that_cannot_decode_together_are_refused_before_they_load(tmp_path):
    """Catches gigabytes that are loaded for a pair with two vocabularies or tokenizers, or with ALiBi."""
    tokenizer = models.load_pair(None, None, "cpu").tokenizer
    size = len(tokenizer)
    target = shapes(tmp_path / "target", tokenizer, llama(vocab_size=size))
    spelled = json.loads(tokenizer.backend_tokenizer.to_str())
    spelled["model"]["vocab"] = {token: size - 1 - index for token, index in spelled["model"]["vocab"].items()}
    spelled["added_tokens"] = []
    shuffled = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(spelled)))
    bloom = BloomConfig(vocab_size=size, hidden_size=8, n_layer=1, n_head=2)
    for name, draft, words in (
        ("wide", shapes(tmp_path / "wide", None, llama(vocab_size=size + 999)), "have vocabularies of"),
        ("other", shapes(tmp_path / "other", shuffled, llama(vocab_size=size)), "in the target's tokenizer"),
        ("alibi", shapes(tmp_path / "alibi", tokenizer, bloom), "uses ALiBi"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            models.load_pair(target, draft, "cpu")
        assert str(refused.value).startswith(f"--target {target} --draft {tmp_path / name}: ")
    good = shapes(tmp_path / "draft", None, llama(vocab_size=size))  # without a tokenizer, the target's is used
    with pytest.raises(OSError, match="no file named model"):
        models.load_pair(target, good, "cpu")


@pytest.mark.parametrize("device", ["cudaa", "meta", "cuda:99", "mps:7"])
def test_unavailable_devices(device):
    """Catches an AssertionError of torch without CUDA, and a RuntimeError for an unknown device."""
    with pytest.raises(ValueError, match="--device must be cpu, or an available accelerator"):
        models.check_device(device)
    models.check_device("cpu")


def test_an_unknown_model_is_named(monkeypatch):
    """Catches an error without the model's name, and a missing folder reported as a malformed repository id."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"target model: the folder \./nothing does not exist"):
        models.load_pair("./nothing", "lookup", "cpu")
    with pytest.raises(OSError, match="target model org/no-such-model is not a local folder and could not be loaded"):
        models.load_pair("org/no-such-model", "lookup", "cpu")
