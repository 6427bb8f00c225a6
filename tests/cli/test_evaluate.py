"""`hf-diversed evaluate` on the embedded pair, and without a draft model."""

import json

import pytest

from hf_diversed.cli.train import TrainArguments, load_rows
from hf_diversed.evaluation.decoder import encode
from hf_diversed.tasks import get_task, load_records
from tests.commands import refused, succeed


CALL = ["evaluate", "--task", "math", "--methods", "target,static:0.5", "--num-examples", "2", "--max-new-tokens", "6"]


def test_table_files_and_plot(tmp_path):
    """Catches missing rows and files, a run that does not continue, and results of other settings in one folder."""
    output = tmp_path / "run"
    result = succeed(*CALL, "--output", output, "--plot", tmp_path / "plot.png")
    assert "Temperature 1, 5 draft tokens per round" in result.stdout
    assert "\nstatic:0.5" in result.stdout
    assert "batch 16" in result.stdout
    assert "math at temperature 1: 100%" in result.stderr
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((output / "evaluation.json").read_text())
    assert [row["method"] for row in report["records"]] == ["target", "static:0.5"]
    again = json.loads(succeed(*CALL, "--output", output, "--json").stdout)
    assert again["records"] == report["records"]
    refused("holds results of other settings", *CALL, "--output", output, "--seed", "1")


@pytest.mark.parametrize(("from_file", "chat"), [(False, True), (True, False)])
def test_prompts_are_those_of_training(from_file, chat, folder, tmp_path, monkeypatch):
    """Catches a head that is evaluated on other prompts than it was trained on: shots, chat, BOS, stop strings."""
    calls = []

    def run(*arguments, **_):
        calls.append(arguments)
        raise ValueError("stop")

    monkeypatch.setattr("hf_diversed.evaluation.evaluate", run)
    data = str(tmp_path / "data.jsonl") if from_file else None
    options = ["--task", "math", "--num-examples", "4", "--seed", "7", "--shots", "2"]
    if from_file:
        records = load_records(get_task("math"), "train", 4)
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    options += ["--data-file", data, "--shots-file", data] if from_file else ["--split", "train"]
    options += ["--chat"] if chat else []
    models = ("--target", folder / "target", "--draft", folder / "draft", "--device", "cpu")
    refused("stop", "evaluate", "--methods", "target", *options, *models)
    ((pair, task, examples, *_),) = calls
    prompts = [task.prompt(example) for example in examples]
    found = encode(pair.tokenizer, prompts, not task.chat)

    arguments = TrainArguments(task="math", data_file=data, num_examples=4, shots=2, chat=chat)
    rows, _ = load_rows(arguments, get_task("math"), 7, held_out=False)
    assert found == encode(pair.tokenizer, [row["prompt"] for row in rows])
    assert task.stop_strings == (() if chat else get_task("math").stop_strings)
