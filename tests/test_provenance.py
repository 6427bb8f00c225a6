"""The provenance stored with every result, and what must not be published."""

import subprocess
from pathlib import Path

import pytest
import torch
from transformers import SchedulerType

from hf_diversed import support
from hf_diversed.provenance import provenance, publishable, weights_digest
from tests.tiny import tiny_model


ROOT = Path(__file__).parent.parent
UNCHANGED = [
    ["target,lossless,static:0.5,spec_cascade:token_v3:0.5,diversed@0.7", "diversed:org/head@main@0.5"],
    ["../models/draft", "./runs/x", "home/model", "https://host/home/x", "s3://bucket/a/b", "git@host:org/x"],
    ["</s>", "+/-", "accepted / drafted", "1/2/3", "Fliesen und/oder Tokens: 5", "key", "hf_diversed"],
    {"num_assistant_tokens": 5, "token": None, "seed": 1, "eos_token": "</s>", "pad_token_id": 0, "skip": True},
]


def test_an_installed_package_has_no_commit(tmp_path, monkeypatch):
    """Catches the commit of a user's project, in whose folder the environment lies."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    installed = tmp_path / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    git("init", "--quiet")
    git("add", ".gitignore")
    git("commit", "--quiet", "--message", "one")
    monkeypatch.setattr("hf_diversed.provenance.__file__", str(installed))
    assert provenance()["git_commit"] is None
    git("add", "--force", str(installed))
    assert provenance()["git_commit"].endswith("-dirty")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"target": "/home/me/my models/target", "heads": ["~/head"]}, {"target": "target", "heads": ["head"]}),
        ("diversed:/home/me/head@0.7,lossless", "diversed:head@0.7,lossless"),
        ({"diversed:/home/me/head": [Path("/data/x.jsonl")]}, {"diversed:head": ["x.jsonl"]}),
        ({"lr_scheduler_type": SchedulerType.LINEAR}, {"lr_scheduler_type": "linear"}),
        *((same, same) for same in UNCHANGED),
    ],
)
def test_paths_are_not_published(given, expected):
    """Catches a user's folder that is pushed to the Hub, and changed ids, addresses, settings and numbers."""
    assert publishable(given) == expected


def test_device_is_that_of_the_models():
    """Catches a GPU that is recorded because it is available, not because it was used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: f"Accelerator {device}")
        assert provenance(0, "cpu")["device"].startswith("cpu (")
        assert provenance(0)["device"].startswith("cpu (")
        assert provenance(0, "cuda:1")["device"] == "Accelerator cuda:1"


def test_weights_digest(tmp_path):
    """Catches a digest that leaves out a tensor, depends on the model's folder, or changes when the model is saved."""
    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert weights_digest(loaded) == weights_digest(model)
    found = {weights_digest(model), weights_digest(loaded.to(torch.bfloat16))}
    for count, parameter in enumerate(model.parameters(), start=3):
        with torch.no_grad():
            parameter.mul_(1.25)
        found.add(weights_digest(model))
        assert len(found) == count


def test_results_name_no_private_folder(tmp_path):
    """Catches the path of a model's folder in results, also once the folder is gone."""
    model = tiny_model()
    for name in (str(tmp_path / "target"), "/no/such/target"):
        model.name_or_path = name
        assert support.model_name(model) == "target"
    model.name_or_path = "org/target"
    assert support.model_name(model) == "org/target"
