"""The training commands: recipes that run, options that explain themselves, and refusals in words."""

import dataclasses
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from typer.testing import CliRunner

from hf_diversed import DiversedHead
from hf_diversed.cli import app
from hf_diversed.cli.options import parse_options
from hf_diversed.cli.train import TrainArguments, load_rows, train
from hf_diversed.tasks import get_task
from hf_diversed.training import DiversedConfig


RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))
RECORDS = {
    "gsm8k": {"question": "Tom has 3 pens and buys 4. How many pens has he?", "answer": "He has 3+4=7 pens.\n#### 7"},
    "cnndm": {"article": "The bridge was closed on Monday. Repairs will take a week.", "highlights": "Bridge closed."},
    "xsum": {"document": "The lake froze in the night. Skaters came at dawn.", "summary": "Skaters came to the lake."},
    "mbpp": {
        "text": "Write a function to add two numbers.",
        "code": "def add(a, b):\n    return a + b",
        "test_list": ["assert add(1, 2) == 3"],
        "test_setup_code": "",
    },
}
SMALLER = {
    "max_steps": 2,
    "num_iterations": 2,
    "per_device_train_batch_size": 2,
    "num_generations": 2,
    "generation_batch_size": 2,
    "num_prompts": 2,
    "num_eval_prompts": 2,
    "max_completion_length": 6,
    "reference_generations": 1,
    "save_steps": 2,
    "eval_steps": 2,
    "disable_tqdm": True,
    "model_init_kwargs": "{}",
}


def options_for(folder: Path, output: Path, task: str) -> list[str]:
    data = output / "data.jsonl"
    record = RECORDS[task]
    first = next(name for name, value in record.items() if isinstance(value, str))
    rows = [record | {first: f"{record[first]} ({number})"} for number in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {"target": folder / "target", "draft": folder / "draft"}
    options = SMALLER | pair | {"data_file": data, "output_dir": output / "head"}
    return [f"--{name}={value}" for name, value in options.items()]


def test_every_pair_of_the_paper_has_a_recipe_for_every_task():
    names = {path.stem for path in RECIPES}
    assert names == {f"{pair}-{task}" for pair in ("llama", "qwen", "gemma") for task in RECORDS}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_parses(path):
    """Catches an option that was renamed, a value out of range, and a recipe that says another task or pair."""
    arguments, config = parse_options((TrainArguments, DiversedConfig), ["--config", str(path)], "test")
    assert arguments.task == path.stem.split("-")[1]
    assert config.output_dir == f"head-{path.stem}"
    assert (config.top_k, config.top_p, config.temperature, config.num_assistant_tokens) == (0, 1.0, 1.0, 5)
    written = yaml.safe_load(path.read_text())
    settings = dataclasses.asdict(arguments) | {
        name: getattr(config, name) for name in written if hasattr(config, name)
    }
    assert {name: settings[name] for name in written} == written


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.stem.startswith("qwen")], ids=lambda path: path.stem
)
def test_recipe_runs(path, folder, tmp_path):
    """Catches a recipe that only parses: a tiny pair stands in, and records of the same columns."""
    task = path.stem.split("-")[1]
    trainer = train(["--config", str(path), *options_for(folder, tmp_path, task)])
    assert trainer.state.global_step == 2
    head = DiversedHead.from_pretrained(tmp_path / "head")
    assert head.config.task == task
    record = json.loads((tmp_path / "head" / "provenance.json").read_text())
    assert (record["training"]["top_k"], record["training"]["top_p"]) == (0, 1.0)
    assert not list((tmp_path / "head").rglob("training_args.bin"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--resume"], True),
        (["--resume_from_checkpoint", "head/checkpoint-8"], "head/checkpoint-8"),
        (["--resume", "--resume_from_checkpoint", "head/checkpoint-8"], "head/checkpoint-8"),
    ],
)
def test_resumes_where_it_is_told_to(monkeypatch, options, expected, tmp_path):
    """Catches an option of upstream's that parses and does nothing: the run would start anew."""
    trainer = Mock()
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", lambda arguments, config: trainer)
    train(["--task", "math", "--output_dir", str(tmp_path), *options])
    trainer.train.assert_called_once_with(resume_from_checkpoint=expected)


def test_command_line_wins_over_the_config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("task: math\nmax_quality_drop: 0.05\nseed: 3\n")
    arguments, config = parse_options((TrainArguments, DiversedConfig), [f"--config={path}", "--seed", "4"], "test")
    assert (arguments.task, config.max_quality_drop, config.seed) == ("math", 0.05, 4)
    path.write_text("task: math\nmax_qualty_drop: 0.05\n")
    with pytest.raises(ValueError, match="max_qualty_drop"):
        parse_options((TrainArguments, DiversedConfig), ["--config", str(path)], "test")


def test_held_out_rows_are_never_trained_on(tmp_path):
    """Catches a head that is chosen on its own training prompts, where both come from one file or one split."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}", "answer": f"#### {n}"}) + "\n" for n in range(10)))
    arguments = TrainArguments(task="gsm8k", data_file=str(path), num_prompts=8, num_eval_prompts=4)
    train_rows, eval_rows = load_rows(arguments, get_task("gsm8k"), seed=0, held_out=True)
    assert not {row["question"] for row in train_rows} & {row["question"] for row in eval_rows}
    assert (len(train_rows), len(eval_rows)) == (6, 4)
    arguments = TrainArguments(task="math", num_prompts=20, num_eval_prompts=20)
    train_rows, eval_rows = load_rows(arguments, get_task("math"), seed=0, held_out=True)
    assert not {row["key"] for row in train_rows} & {row["key"] for row in eval_rows}


@pytest.mark.parametrize("command", ["train", "tune-draft"])
def test_help_explains_every_option(command):
    """Catches an option of ours without a word on what it does."""
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for item in dataclasses.fields(TrainArguments) if command == "train" else ():
        assert f"--{item.name}" in result.output
        assert item.metadata["help"][:30] in " ".join(result.output.split())


def test_refusals_come_in_words(tmp_path):
    """Catches a traceback where a sentence would do."""
    for arguments, words in (
        (["train", "--task", "math", "--target", "x"], "--target and --draft go together"),
        (["train", "--task", "poetry"], "poetry"),
        (["train", "--task", "code"], "allow-code-execution"),
        (["train", "--task", "math", "--temperature", "0"], "temperature must be above 0"),
        (["evaluate", "--task", "math", "--methods", "magic"], "unknown method"),
        (["evaluate", "--task", "code", "--methods", "ar", "--num-examples", "1"], "code"),
    ):
        if arguments[0] == "train":
            arguments = [*arguments, "--output_dir", str(tmp_path / "out")]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2, arguments
        assert words in " ".join(result.output.split())
        assert "Traceback" not in result.output
