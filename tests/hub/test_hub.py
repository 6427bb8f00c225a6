"""Pushing and pulling heads with the huggingface_hub client and a local server. Figures are invented."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModel

from hf_diversed import DiversedHead
from hf_diversed.head import load_head
from hf_diversed.provenance import module_digest
from tests.commands import succeed
from tests.hub.test_card import HUB, make_evaluation, make_training, snippet_of


REPO = "org/head-gsm8k"
HEAD_FILES = {"README.md", "config.json", "model.safetensors"}
HEAD_FILES |= {"custom_generate/generate.py", "custom_generate/requirements.txt"}
FILES = HEAD_FILES | {"evaluation.json", "provenance.json"}


def make_head(seed: int = 0, **settings) -> DiversedHead:
    torch.manual_seed(seed)
    config = HUB.to_dict() | {"target_hidden_size": 8, "draft_hidden_size": 4} | settings
    head = DiversedHead(type(HUB).from_dict(config)).eval()
    torch.nn.init.normal_(head.out.weight)
    return head


@pytest.fixture
def folder(tmp_path):
    """The folder of a trained and evaluated head, with files that are not published."""
    folder = tmp_path / "head"
    make_head(base_model_name_or_path=str(tmp_path / "my-target")).save_pretrained(folder)
    for name in ("training_args.bin", "trainer_state.json", "optimizer.pt", "notes.txt"):
        (folder / name).write_text("private")
    training = make_training() | {"options": {"data_file": str(tmp_path / "data.jsonl")}}
    (folder / "provenance.json").write_text(json.dumps(training))
    (folder / "evaluation.json").write_text(json.dumps(make_evaluation()))
    return folder


def test_push_and_pull_elsewhere(hub, tmp_path):
    """Catches missing or additional files, a second commit, and changed weights or settings."""
    head = make_head()
    commit = head.push_to_hub(REPO, evaluation=make_evaluation(), training=make_training())
    assert set(hub.files(REPO)) == FILES
    assert [c.title for c in hub.repositories[REPO].commits] == ["initial commit", "Upload DiversedHead"]
    assert commit.oid == hub.repositories[REPO].at("main").sha
    pulled = DiversedHead.from_pretrained(REPO, cache_dir=tmp_path / "elsewhere")
    assert module_digest(pulled) == module_digest(head)
    assert pulled.config.to_diff_dict() == head.config.to_diff_dict() | {
        "architectures": ["DiversedHead"], "dtype": "float32",
    }  # fmt: skip


def test_a_folder_is_pushed(hub, folder, tmp_path):
    """Catches pickles and other files of a training folder, dropped options, a card that names another repository, and
    local paths in published files."""
    options = ("--tags", "one,two", "--license", "mit", "--commit-message", "Two", "--private", "--revision", "v2")
    result = succeed("push", folder, "head", *options)
    assert f"{hub.endpoint}/org/head/commit/" in result.output
    repository = hub.repositories["org/head"]
    assert repository.private
    assert set(repository.branches) == {"main", "v2"}
    assert repository.at("main").files == {}
    assert repository.at("v2").title == "Two"
    files = repository.at("v2").files
    assert set(files) == FILES
    text = files["README.md"].decode()
    assert 'from_pretrained("org/head")' in text
    assert b'"org/head", "v2"' in files["custom_generate/generate.py"]
    card = ModelCard(text).data
    assert {"one", "two"} <= set(card.tags)
    assert card.license == "mit"
    assert card.base_model is None  # "my-target" is no id of the Hub
    for path, content in files.items():
        assert str(tmp_path).encode() not in content, path
    assert json.loads(files["config.json"])["base_model_name_or_path"] == "my-target"


def test_a_folder_is_written_without_the_hub(folder, tmp_path, monkeypatch):
    """Catches a network access, and a card that loads the head from elsewhere."""
    monkeypatch.chdir(tmp_path)
    succeed("push", folder, "./published")
    written = {path.name for path in (tmp_path / "published").iterdir()}
    assert written == FILES - {path for path in FILES if "/" in path}
    text = (tmp_path / "published" / "README.md").read_text()
    assert 'DiversedHead.from_pretrained("./published")' in snippet_of(text)
    assert module_digest(DiversedHead.from_pretrained("published")) == module_digest(make_head())
    make_head(seed=1).save_pretrained("other")
    succeed("push", tmp_path / "other", "./published")  # the records of the first head must go
    left = {path.name for path in (tmp_path / "published").iterdir()}
    assert left == written - {"evaluation.json", "provenance.json"}


def test_old_records_go(hub):
    """Catches figures of the previous head that stay with a new one; other files must stay."""
    make_head().push_to_hub(REPO, evaluation=make_evaluation(), training=make_training())
    hub.repositories[REPO].at("main").files["figure.png"] = b"other"
    make_head(seed=1).push_to_hub(REPO)
    assert set(hub.files(REPO)) == HEAD_FILES | {"figure.png"}
    assert "This head was not evaluated." in hub.files(REPO)["README.md"].decode()
    assert len(hub.repositories[REPO].commits) == 3


def test_an_evaluation_of_other_weights_is_refused(hub):
    """Catches a card with figures of other weights."""
    evaluation = make_evaluation()
    method = f"DiversedVerifier(head={module_digest(make_head())}, strictness=[0.5])"
    evaluation["provenance"]["methods"] = {"diversed": method, "lossless": ""}
    other = make_head(seed=1)
    message = f"other weights: those of this head are {module_digest(other)}, got {module_digest(make_head())};"
    with pytest.raises(ValueError, match=message):
        other.push_to_hub(REPO, evaluation=evaluation)
    assert hub.repositories == {}


def test_every_way_to_name_a_head(hub):
    """Catches arguments that are dropped, so that another revision is read."""
    first, second, third = (make_head(seed) for seed in range(3))
    commit = first.push_to_hub(REPO)
    second.push_to_hub(REPO)
    third.push_to_hub(REPO, revision="v3")
    assert module_digest(DiversedHead.from_pretrained(REPO)) == module_digest(second)
    assert module_digest(AutoModel.from_pretrained(REPO)) == module_digest(second)
    assert module_digest(DiversedHead.from_pretrained(REPO, revision=commit.oid)) == module_digest(first)
    assert module_digest(load_head(f"{REPO}@v3")) == module_digest(third)
