"""`hf-diversed push --card-only` and `--info` on a head in a folder; `push` itself is tested with the Hub."""

import json

import pytest
from huggingface_hub import ModelCard

from hf_diversed.cli.options import PushOptions
from hf_diversed.head import DiversedHead
from hf_diversed.hub.records import LICENSE
from tests.commands import refused, run, succeed
from tests.hub.test_card import HUB, make_evaluation, make_training, snippet_of


@pytest.fixture
def folder(tmp_path):
    DiversedHead(HUB).save_pretrained(tmp_path)
    (tmp_path / "provenance.json").write_text(json.dumps(make_training()))
    (tmp_path / "evaluation.json").write_text(json.dumps(make_evaluation()))
    return tmp_path


def test_card_is_written(folder, tmp_path):
    """Catches records beside the head that are missing in the card, and options that are dropped."""
    succeed("push", str(folder), "org/head-gsm8k", "--card-only", "--license", "mit", "--tags", "one, two")
    data = ModelCard.load(folder / "README.md").data
    assert (data.license, data.model_name) == ("mit", "head-gsm8k")
    assert data.tags[-2:] == ["one", "two"]
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"records": [make_evaluation()["records"][1] | {"quality": 0.1234}]}))
    output = tmp_path / "card.md"
    assert run("push", str(folder), "--card-only", "--evaluation", str(other), "--output", str(output)).exit_code == 0
    assert "12.3%" in output.read_text()


def test_card_shows_the_head_in_the_folder(tmp_path, monkeypatch):
    """Catches a card whose snippet decodes with the packaged head of the same task."""
    monkeypatch.chdir(tmp_path)
    config = type(HUB)(256, 96, features="distribution", task="math", training_temperature=0.0)
    DiversedHead(config).save_pretrained("runs/mine")
    for named, shown in (("runs/mine", "runs/mine"), (str(tmp_path / "runs" / "mine"), "mine")):
        assert run("push", named, "--card-only").exit_code == 0
        text = (tmp_path / "runs" / "mine" / "README.md").read_text()
        assert f'head = DiversedHead.from_pretrained("{shown}")' in text
        assert "pair.heads" not in text
        assert "do_sample=False" in text
        assert str(tmp_path) not in text
        compile(snippet_of(text), "card", "exec")


def test_license_of_the_help_is_that_of_the_card():
    """Catches another default of --license, as the options do not import the card."""
    assert PushOptions(folder="head").license == LICENSE


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"records": [{"method": "lossless"}]}', "record of the head"),
    ],
)
def test_bad_records_are_messages(folder, content, words):
    """Catches tracebacks for user errors."""
    (folder / "evaluation.json").write_text(content)
    refused(words, "push", folder, "--card-only")


def test_info_has_a_table_per_setting(folder):
    """Catches times of the last setting of a sweep in the rows of all others."""
    records = [
        {"method": "target", "temperature": t, "num_assistant_tokens": 5, "tokens_per_second": speed}
        for t, speed in ((0.0, 50.0), (1.0, 100.0))
    ]
    (folder / "evaluation.json").write_text(json.dumps({"records": records}))
    output = succeed("push", folder, "--info").stdout
    assert output.index("Temperature 0, 5 draft") < output.index(" 20.00") < output.index("Temperature 1, 5 draft")
    assert output.index("Temperature 1, 5 draft") < output.index(" 10.00")


def test_info_of_a_hostile_head(folder):
    """Catches escape sequences that reach the terminal, names read as markup, and tracebacks for missing keys."""
    words = "[/x]\x1b]0;title\x07"
    DiversedHead(type(HUB)(8, 8, task=words)).save_pretrained(folder)
    record = {"method": words, "metric": words, "temperature": 1, "num_assistant_tokens": 5}
    (folder / "evaluation.json").write_text(json.dumps({"records": [record]}))
    output = succeed("push", folder, "--info").output
    assert output.count("[/x]") == 3  # a header may be wrapped
    assert "\x1b" not in output
    for records in ([{}], [{"method": "target"}], ["x"], [record | {"temperature": "x"}]):
        (folder / "evaluation.json").write_text(json.dumps({"records": records}))
        refused("evaluation.json is not a result of `hf-diversed evaluate`", "push", folder, "--info")
