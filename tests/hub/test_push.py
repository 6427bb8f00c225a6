"""Publishing with the huggingface_hub client to a local server. Figures are invented."""

import json

import pytest
import torch
import yaml
from huggingface_hub import HfApi, ModelCard, parse_eval_result_entries

from hf_diversed import DiversedHead
from hf_diversed.hub import PushError
from hf_diversed.provenance import module_digest
from tests.commands import succeed
from tests.hub.loopback import DROP, LOSE_ANSWER, READER
from tests.hub.test_card import HUB, make_evaluation, make_record, make_training


REPO = "org/head-gsm8k"
STEPS = ("create", "info", "validate", "preupload", "batch", "upload", "verify", "commit")
HEAD_FILES = {"README.md", "config.json", "model.safetensors"}
HEAD_FILES |= {"custom_generate/generate.py", "custom_generate/requirements.txt"}
FILES = HEAD_FILES | {".eval_results/gsm8k.yaml", "evaluation.json", "provenance.json"}


def make_head(seed: int = 0, **settings) -> DiversedHead:
    torch.manual_seed(seed)
    config = HUB.to_dict() | {"target_hidden_size": 8, "draft_hidden_size": 4} | settings
    head = DiversedHead(type(HUB).from_dict(config)).eval()
    torch.nn.init.normal_(head.out.weight)
    return head


def records() -> dict:
    return {"evaluation": make_evaluation(), "training": make_training()}


def ours(hub, repo_id: str = REPO, revision: str = "main") -> dict[str, bytes]:
    return {path: content for path, content in hub.files(repo_id, revision).items() if path != ".gitattributes"}


def test_push_and_pull_elsewhere(hub, tmp_path):
    """Catches missing or additional files, a second commit, and changed weights or cards."""
    head = make_head()
    commit = head.push_to_hub(REPO, **records())
    assert set(ours(hub)) == FILES
    assert [c.title for c in hub.repositories[REPO].commits] == ["initial commit", "Upload DiversedHead"]
    assert commit.oid == hub.repositories[REPO].at("main").sha
    pulled = DiversedHead.from_pretrained(REPO, cache_dir=tmp_path / "elsewhere")
    assert module_digest(pulled) == module_digest(head)
    assert pulled.config.to_dict() | {"_name_or_path": ""} == head.config.to_dict() | {
        "_name_or_path": "", "architectures": ["DiversedHead"], "dtype": pulled.config.to_dict()["dtype"],
    }  # fmt: skip
    assert pulled.name_or_path == REPO


def test_results_are_for_leaderboards(hub):
    """Catches figures of other methods, and files that the Hub's parser refuses."""
    evaluation = make_evaluation()
    evaluation["records"].append(make_record("diversed@0.75", 1))
    make_head().push_to_hub(REPO, evaluation=evaluation)
    files = {path: content for path, content in hub.files(REPO).items() if path.startswith(".eval_results/")}
    assert set(files) == {".eval_results/gsm8k.yaml", ".eval_results/gsm8k-strictness-0.75.yaml"}
    for path, method in zip(sorted(files, reverse=True), ("diversed", "@0.75")):
        (entry,) = parse_eval_result_entries(yaml.safe_load(files[path]))
        record = next(record for record in evaluation["records"] if record["method"].endswith(method))
        assert (entry.dataset_id, entry.task_id) == ("openai/gsm8k", "default")
        assert entry.value == pytest.approx(100 * record["quality"])
        assert entry.date == evaluation["provenance"]["time"]
        assert "437 prompts" in entry.notes
        assert f"{record['acceptance_rate']:.1%}" in entry.notes


def test_nothing_but_the_head_is_sent(hub, tmp_path, monkeypatch):
    """Catches pickles and other files of a training folder, and local paths in published files."""
    head = make_head(base_model_name_or_path=str(tmp_path / "my-target"))
    head.save_pretrained(tmp_path)
    for name in ("training_args.bin", "trainer_state.json", "optimizer.pt", "notes.txt"):
        (tmp_path / name).write_text("private")
    training = make_training() | {"argv": ["hf-diversed", "train", f"--output_dir={tmp_path}"]}
    training["training"]["model_init_kwargs"] = {"cache_dir": str(tmp_path / "models")}
    (tmp_path / "provenance.json").write_text(json.dumps(training))
    (tmp_path / "evaluation.json").write_text(json.dumps(make_evaluation()))
    result = succeed("push", str(tmp_path), REPO, "--tags", "one,two", "--commit-message", "Here")
    assert f"{hub.endpoint}/{REPO}/commit/" in result.output
    assert set(ours(hub)) == FILES
    assert hub.repositories[REPO].at("main").title == "Here"
    card = ModelCard(hub.files(REPO)["README.md"].decode()).data
    assert {"one", "two"} <= set(card.tags)
    assert card.base_model is None  # "my-target" is no id of the Hub
    for path, content in hub.files(REPO).items():
        assert str(tmp_path).encode() not in content, path
    assert json.loads(hub.files(REPO)["config.json"])["base_model_name_or_path"] == "my-target"


def test_outdated_results_go(hub):
    """Catches figures of the previous head that stay with a new one; other files must stay."""
    make_head().push_to_hub(REPO, **records())
    files = hub.repositories[REPO].at("main").files
    others = {"figure.png", ".eval_results/another-benchmark.yaml", "custom_generate/helper.py"}
    files |= dict.fromkeys(others, b"other")
    make_head(seed=1).push_to_hub(REPO)
    assert set(ours(hub)) == HEAD_FILES | others
    assert "No evaluation of this head is recorded." in hub.files(REPO)["README.md"].decode()
    assert len(hub.repositories[REPO].commits) == 3


def test_figures_of_another_head_are_refused(hub):
    """Catches a card with figures of other weights; nothing may be sent then."""
    definition = {"diversed": f"DiversedVerifier(head={module_digest(make_head())}, strictness=[0.5])"}
    for methods in ({"methods_of_evaluations": [{"lossless": ""}, definition]}, {"methods": definition}):
        evaluation = make_evaluation()
        evaluation["provenance"] = evaluation["provenance"] | methods
        with pytest.raises(ValueError, match="other weights"):
            make_head(seed=1).push_to_hub(REPO, evaluation=evaluation)
        assert hub.log == []
    make_head().push_to_hub(REPO, evaluation=evaluation)
    evaluation["records"] = [record for record in evaluation["records"] if record["method"] != "diversed"]
    with pytest.raises(ValueError, match="must have a record of the head"):
        make_head().push_to_hub(REPO, evaluation=evaluation)


def test_several_settings_are_refused(hub):
    """Catches a card with the last temperature of a sweep only; nothing may be sent then."""
    evaluation = make_evaluation()
    evaluation["records"].append(make_record("static:0.3", 1, temperature=0.0))
    with pytest.raises(ValueError, match=r"several records of static:0.3; .* use one of them instead"):
        make_head().push_to_hub(REPO, evaluation=evaluation)
    assert hub.log == []


def test_private_branch_and_bare_name(hub):
    """Catches dropped options, and a card that names another repository."""
    make_head().push_to_hub("head", private=True, revision="v2", commit_message="Two")
    repository = hub.repositories["org/head"]
    assert repository.private
    assert set(repository.branches) == {"main", "v2"}
    assert repository.at("v2").title == "Two"
    assert "README.md" not in repository.at("main").files
    assert 'from_pretrained("org/head")' in repository.at("v2").files["README.md"].decode()
    assert b'"org/head@v2"' in repository.at("v2").files["custom_generate/generate.py"]
    make_head(seed=1).push_to_hub("org/head", revision="v2")  # the branch exists
    assert len(repository.commits) == 3


def test_pull_request_of_another_user(hub):
    """Catches a pull request that needs rights which its author lacks, or that changes main."""
    make_head().push_to_hub(REPO)
    before = hub.repositories[REPO].at("main")
    commit = make_head(seed=1).push_to_hub(REPO, create_pr=True, token=READER)
    assert commit.pr_url == f"{hub.endpoint}/{REPO}/discussions/1"
    assert hub.repositories[REPO].at("main") is before
    assert ours(hub, revision="refs/pr/1")["model.safetensors"] != before.files["model.safetensors"]
    make_head(seed=2).push_to_hub(REPO, revision="main", create_pr=True, token=READER)
    assert "refs/pr/2" in hub.repositories[REPO].branches
    with pytest.raises(PushError, match="403"):
        make_head(seed=1).push_to_hub(REPO, token=READER)


def test_a_concurrent_push_is_detected(hub, monkeypatch):
    """Catches two concurrent pushes that mix files: the commit must be based on the state that was read."""
    make_head().push_to_hub(REPO)
    read = HfApi.model_info

    def model_info(self, *args, **kwargs):
        found = read(self, *args, **kwargs)
        repository = hub.repositories[REPO]
        if len(repository.commits) == 2:
            repository.commit("main", {**repository.at("main").files, "new": b""}, "faster")
        return found

    monkeypatch.setattr(HfApi, "model_info", model_info)
    with pytest.raises(PushError, match="A commit has happened since"):
        make_head(seed=1).push_to_hub(REPO)
    assert hub.repositories[REPO].at("main").title == "faster"
    make_head(seed=1).push_to_hub(REPO)


@pytest.mark.parametrize(
    ("step", "fault"), [*((step, 500) for step in STEPS), ("create", 401), ("upload", DROP), ("commit", 403)]
)
def test_nothing_is_half_published(hub, step, fault):
    """Catches a failure that leaves some files visible, has another type, or breaks the next push."""
    hub.fail(step, fault)
    with pytest.raises(PushError, match=f"pushing to {REPO} failed: (?s:.*)All files are in one commit") as caught:
        make_head().push_to_hub(REPO, **records())
    assert caught.value.__cause__ is not None
    assert (REPO in hub.repositories) == (step != "create")
    if step != "create":
        assert [commit.title for commit in hub.repositories[REPO].commits] == ["initial commit"]
        assert ours(hub) == {}
    hub.recover()
    make_head().push_to_hub(REPO, **records())
    assert set(ours(hub)) == FILES
    assert len(hub.repositories[REPO].commits) == 2


def test_lost_answers(hub):
    """Catches a second commit of the same files when only the Hub's answer was lost."""
    hub.fail("commit", LOSE_ANSWER)
    with pytest.raises(PushError):
        make_head().push_to_hub(REPO, **records())
    hub.recover()
    commit = make_head().push_to_hub(REPO, **records())
    assert commit.oid == hub.repositories[REPO].at("main").sha
    assert len(hub.repositories[REPO].commits) == 2
    assert set(ours(hub)) == FILES
