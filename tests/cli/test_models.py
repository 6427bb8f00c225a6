"""Where commands put the pair: on the device that was named, or the best one."""

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_diversed import DiversedHead
from hf_diversed.cli import benchmark, models, preparing
from hf_diversed.cli.train import train
from hf_diversed.cli.tune_draft import tune


@pytest.fixture
def moves(monkeypatch):
    """Class and device of every `.to(device)`; nothing moves, so that any device will do."""
    found = []

    def to(module, device, *_, **__):
        found.append((type(module), str(device)))
        return module

    monkeypatch.setattr(torch.nn.Module, "to", to)
    monkeypatch.setattr(models, "check_device", lambda device: None)
    return found


@pytest.mark.parametrize(("rank", "visible", "device"), [(None, 8, "cuda:0"), ("3", 8, "cuda:3"), ("3", 1, "cuda:0")])
def test_processes_of_one_machine_take_a_gpu_each(rank, visible, device, monkeypatch):
    """Catches a launch over eight GPUs that loads eight pairs onto the first, and one that sees its own alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert models.best_device() == device


def load_pair(device):
    return models.load_pair(None, None, device)


def load_models(device):
    return preparing.load_models(None, None, None, device, "math")


def trained_pair(device):
    return benchmark._trained_pair(None, None, device, None, 1, 0)


@pytest.mark.parametrize("load", [load_pair, load_models, trained_pair])
@pytest.mark.parametrize("device", ["cuda:1", None])
def test_the_embedded_pair_goes_where_it_is_told(load, device, moves, monkeypatch):
    """Catches a --device that only named pairs obey, and heads that stay behind."""
    monkeypatch.setattr(models, "best_device", lambda: "mps")
    load(device)
    assert {where for _, where in moves} == {device or "mps"}
    kinds = [kind for kind, _ in moves]
    assert kinds.count(LlamaForCausalLM) == 2
    assert kinds.count(DiversedHead) == len(models.load_demo_pair().heads)


@pytest.mark.parametrize(("command", "builder"), [(train, "train.DiversedTrainer"), (tune, "tune_draft.tune_draft")])
def test_training_has_the_embedded_pair_on_its_own_device(command, builder, moves, monkeypatch, tmp_path):
    """Catches a head that trains on one device with its pair on another."""

    class Built(Exception):
        pass

    def build(*args, **kwargs):
        raise Built

    monkeypatch.setattr(f"hf_diversed.cli.{builder}", build)
    monkeypatch.setattr("transformers.TrainingArguments.device", torch.device("cuda:1"))
    options = ["--num-examples", "4", "--output_dir", str(tmp_path)]
    with pytest.raises(Built):
        command(["--task", "math", *options, *(["--num-eval-examples", "4"] if command is train else [])])
    assert [where for kind, where in moves if kind is LlamaForCausalLM] == ["cuda:1"] * 2


def test_chat_without_a_template_is_refused_before_models_load(tmp_path):
    """Catches minutes of loading before a refusal; there are no models in this folder."""
    tokenizer = models.load_pair(None, None, "cpu").tokenizer
    tokenizer.save_pretrained(tmp_path)
    for name in (None, str(tmp_path)):
        with pytest.raises(ValueError, match="--chat needs a tokenizer with a chat template"):
            models.load_pair(name, name, "cpu", chat=True)
