"""`hf-diversed push` to a folder; pushing to the Hub is tested in `tests/hub`."""

import json

import pytest

from hf_diversed.head import DiversedHead
from tests.commands import refused, succeed
from tests.hub.test_card import HUB, make_evaluation, make_training


@pytest.fixture
def head(tmp_path):
    DiversedHead(HUB).save_pretrained(tmp_path / "head")
    (tmp_path / "head" / "provenance.json").write_text(json.dumps(make_training()))
    (tmp_path / "head" / "evaluation.json").write_text(json.dumps(make_evaluation()))
    return tmp_path / "head"


def test_folder_without_the_hub(head, tmp_path):
    """Catches records beside the head that are missing in the card, and options that are dropped."""
    folder = tmp_path / "published"
    result = succeed("push", head, folder, "--license", "mit", "--tags", "one, two")
    assert result.stdout == f"{folder}\n"
    card = (folder / "README.md").read_text()
    assert "license: mit" in card
    assert "- one\n- two\n" in card
    assert {"config.json", "model.safetensors", "provenance.json", "evaluation.json"} <= {
        path.name for path in folder.iterdir()
    }
    assert DiversedHead.from_pretrained(folder).config.task == HUB.task


def test_repository_on_the_hub(head, monkeypatch):
    """Catches options that do not reach the Hub, and a folder that is created for a repository's name."""
    calls = []

    def push(folder, repo_id, **options):
        calls.append((repo_id, {name: value for name, value in options.items() if value}))
        raise OSError("offline")

    monkeypatch.setattr("hf_diversed.hub.push", push)
    refused("offline", "push", head, "org/head", "--private", "--revision", "v1", "--create-pr", "--license", "mit")
    assert calls == [("org/head", {"license": "mit", "private": True, "revision": "v1", "create_pr": True})]


@pytest.mark.parametrize(("content", "words"), [("{", "is not valid JSON"), ("[]", "must hold a JSON object")])
def test_bad_records_are_messages(head, content, words):
    """Catches tracebacks for damaged files."""
    (head / "evaluation.json").write_text(content)
    refused(words, "push", head, head.parent / "published")
