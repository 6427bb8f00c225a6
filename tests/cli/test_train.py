"""The training commands: recipes, help texts, and error messages."""

import dataclasses
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from filelock import FileLock
from transformers import AutoTokenizer

from hf_diversed import DiversedHead
from hf_diversed.cli.options import TrainOptions
from hf_diversed.cli.train import load_rows
from hf_diversed.cli.training import call, parse, without_debug
from hf_diversed.tasks import get_task
from hf_diversed.training.run_folder import LOCK
from hf_diversed.training.settings import TrainingSettings
from tests.commands import refused, run, succeed


RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))
RECORDS = {
    "gsm8k": {"question": "Tom has 3 pens and buys 4. How many pens has he?", "answer": "He has 3+4=7 pens.\n#### 7"},
    "cnndm": {"article": "The bridge was closed on Monday. Repairs will take a week.", "highlights": "Bridge closed."},
    "xsum": {"document": "The lake froze in the night. Skaters came at dawn.", "summary": "Skaters came to the lake."},
    "mbpp": {
        **{"text": "Write a function to add two numbers.", "code": "def add(a, b):\n    return a + b"},
        **{"test_list": ["assert add(1, 2) == 3"], "test_setup_code": ""},
    },
}
SMALLER = {"max_steps": 2, "num_iterations": 2, "per_device_train_batch_size": 2, "num_generations": 2}
SMALLER |= {"generation_batch_size": 2, "num_examples": 2, "num_eval_examples": 2, "max_completion_length": 6}
SMALLER |= {"reference_generations": 1, "save_steps": 2, "eval_steps": 2, "disable_tqdm": True}
SMALLER["model_init_kwargs"] = "{}"


def options_for(folder: Path, output: Path, task: str) -> list[str]:
    data = output / "data.jsonl"
    record = RECORDS[task]
    first = next(name for name, value in record.items() if isinstance(value, str))
    rows = [record | {first: f"{record[first]} ({number})"} for number in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = {"target": folder / "target", "draft": folder / "draft"}
    options = SMALLER | pair | {"data_file": data, "output_dir": output / "head"}
    return [f"--{name}={value}" for name, value in options.items()]


def test_every_task_of_the_paper_has_a_recipe():
    assert {path.stem for path in RECIPES} == set(RECORDS)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_parses(path):
    """Catches an option that was renamed, a value out of range, and a recipe of another task."""
    arguments, config = parse(["--config", str(path)])
    assert arguments.task == path.stem
    assert config.output_dir == f"head-{path.stem}"
    assert (config.top_k, config.top_p, config.temperature, config.num_assistant_tokens) == (0, 1.0, 1.0, 5)
    written = yaml.safe_load(path.read_text())
    settings = dataclasses.asdict(arguments) | {
        name: getattr(config, name) for name in written if hasattr(config, name)
    }
    assert {name: settings[name] for name in written} == written


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs(path, folder, tmp_path):
    """Catches a recipe that only parses; the run uses a tiny pair and records of the same columns."""
    trainer = call(["--config", str(path), *options_for(folder, tmp_path, path.stem)])
    assert trainer.state.global_step == 2
    head = DiversedHead.from_pretrained(tmp_path / "head")
    assert head.config.task == path.stem
    record = json.loads((tmp_path / "head" / "provenance.json").read_text())
    assert (record["training"]["top_k"], record["training"]["top_p"]) == (0, 1.0)
    assert (record["options"]["num_examples"], record["options"]["data_file"]) == (2, "data.jsonl")
    assert not list((tmp_path / "head").rglob("training_args.bin"))


def test_a_head_with_token_features(folder, tmp_path):
    """Catches options without effect, and a record without the defaults that the kind of head determined."""
    token = ["--token-features", "--initial-lenience", "0.1", "--report-to", "none", "--use-cpu", "true"]
    call(["--task", "gsm8k", *options_for(folder, tmp_path, "gsm8k"), *token])
    head = DiversedHead.from_pretrained(tmp_path / "head")
    assert head.config.token_features
    assert head.config.features == "distribution"
    settings = json.loads((tmp_path / "head" / "provenance.json").read_text())["training"]
    names = ("token_features", "initial_lenience", "clip_range", "baseline")
    assert [settings[name] for name in names] == [True, 0.1, 0.5, "prompt"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], None),
        (["--resume"], True),
        (["--resume_from_checkpoint", "checkpoint-8"], "checkpoint-8"),
        (["--resume", "--resume-from-checkpoint", "checkpoint-8"], "checkpoint-8"),
        (["--resume_from_checkpoint", "True"], True),
        (["--resume-from-checkpoint", "true"], True),
        (["--resume_from_checkpoint", "False"], None),
        (["--config", "run.yaml"], True),
    ],
)
def test_resumes_from_the_given_checkpoint(monkeypatch, options, expected, tmp_path):
    """Catches an upstream option without effect, so that the run would start again, and a folder "True"."""
    trainer = Mock()
    monkeypatch.chdir(tmp_path)
    Path("checkpoint-8").mkdir()
    Path("run.yaml").write_text("resume_from_checkpoint: true\n")
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", lambda arguments, config: trainer)
    call(["--task", "math", "--output_dir", str(tmp_path / "head"), *options])
    trainer.train.assert_called_once_with(resume_from_checkpoint=expected)


EARLIER = ("model.safetensors", "config.json", "README.md", "calibration/batches-0.jsonl", "checkpoint-8/head.bin")
EARLIER += ("evaluation.parts/batches-0.jsonl",)
EARLIER_TEXT = '{"model_type": "diversed_head"}'


KEPT = ("notes.txt", "other.safetensors", "tokenizer.json")


@pytest.fixture
def used(tmp_path):
    """A folder with the files of an earlier run and files of the user's."""
    for name in (*EARLIER, *KEPT, "checkpoint-8/optimizer.pt"):
        path = tmp_path / "used" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(EARLIER_TEXT)
    return tmp_path / "used"


def test_used_folders_are_refused(used):
    """Catches a new head beside the card, the calibration and the checkpoints of an earlier run."""
    options = ["--task", "math", "--output-dir", str(used)]
    refused("is not empty: it holds README.md, calibration, checkpoint-8 ...", "train", *options)
    message = " ".join(run("train", *options).stderr.split())
    assert "Pass --overwrite to remove what an earlier run wrote, --resume to continue it" in message
    assert all((used / name).read_text() == EARLIER_TEXT for name in EARLIER)


def test_overwriting_keeps_other_models(used):
    """Catches a language model that is removed because its files have the same names."""
    (used / "config.json").write_text('{"model_type": "llama"}')
    words = "which is not the configuration of a head"
    refused(words, "train", "--task", "math", "--output-dir", str(used), "--overwrite")
    assert (used / "model.safetensors").exists()


def test_overwriting_removes_the_earlier_run(monkeypatch, used):
    """Catches files that remain, the user's that do not, and a folder emptied before the new run can start."""
    trainer = Mock()
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", Mock(side_effect=ValueError("no such task")))
    options = ["--task", "math", "--output_dir", str(used), "--overwrite"]
    with pytest.raises(ValueError, match="no such task"):
        call(options)
    assert all((used / name).exists() for name in EARLIER)
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", lambda arguments, config: trainer)
    with pytest.raises(ValueError, match="pass only one of them"):
        call([*options, "--resume"])
    with pytest.raises(ValueError, match=r"which this run reads\. Choose another folder"):
        call([*options, "--head", str(used / "checkpoint-8")])
    call(options)
    trainer.train.assert_called_once_with(resume_from_checkpoint=None)
    assert sorted(path.name for path in used.glob("[!.]*")) == sorted(KEPT)


def test_overwriting_a_folder_in_use_is_refused(monkeypatch, used):
    """Catches a command that removes the checkpoints of a run that is still training."""
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", lambda arguments, config: Mock())
    with FileLock(used / LOCK), pytest.raises(OSError, match="another run is training in"):
        call(["--task", "math", "--output_dir", str(used), "--overwrite"])
    assert all((used / name).read_text() == EARLIER_TEXT for name in EARLIER)


@pytest.mark.parametrize(
    ("options", "how"), [([], "with --resume to"), (["--overwrite"], "with --resume instead of --overwrite to")]
)
def test_interrupts_name_the_way_to_continue(monkeypatch, tmp_path, options, how):
    """Catches advice to combine --resume with --overwrite, which is an error."""
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", Mock(side_effect=KeyboardInterrupt))
    result = run("train", "--task", "math", "--output-dir", tmp_path, *options)
    assert result.exit_code == 130
    assert f"Run the same command {how} continue" in result.stderr


def test_a_missing_chat_template_is_an_early_error(monkeypatch, tmp_path, folder):
    """Catches an error that follows the loading of both models."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    tokenizer.chat_template = None
    monkeypatch.setattr("hf_diversed.cli.train.load_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr("hf_diversed.cli.train.DiversedTrainer", None)
    pair = ["--target", folder / "target", "--draft", folder / "draft", "--use-cpu", "true"]
    refused("chat prompts need a chat template", "train", "--task", "math", "--chat", "--output-dir", tmp_path, *pair)


def test_caches_alone_are_no_earlier_run(monkeypatch, tmp_path):
    """Catches a run that stopped before its first checkpoint and cannot be started again with the same command."""
    trainer = Mock()
    monkeypatch.setattr("hf_diversed.cli.train.build_trainer", lambda arguments, config: trainer)
    for name in ("reference_rewards.json", ".training.lock"):
        (tmp_path / name).touch()
    call(["--task", "math", "--output_dir", str(tmp_path)])
    trainer.train.assert_called_once_with(resume_from_checkpoint=None)


def test_standard_output_gets_the_folder_alone(tmp_path, folder):
    """Catches the trainer's logs on standard output, which scripts read, and a --dtype without effect."""
    options = ["--max-steps", "2", "--num-examples", "2", "--max-completion-length", "4", "--dtype", "bfloat16"]
    pair = ["--target", str(folder / "target"), "--draft", str(folder / "draft"), "--use-cpu", "true"]
    options += ["--logging-steps", "1", "--disable-tqdm", "true", "--report-to", "none", "--save-steps", "2"]
    sizes = {"num-iterations": 2, "per-device-train-batch-size": 2, "num-generations": 2, "eval-steps": 2}
    sizes |= {"num_eval_examples": 2, "reference_generations": 1}  # spelled with underscores
    options += [f"--{name}={value}" for name, value in sizes.items()]
    result = succeed("train", "--task", "math", "--output-dir", str(tmp_path), *pair, *options)
    assert result.stdout == f"{tmp_path}\n"
    assert "'loss'" in result.stderr
    settings = json.loads((tmp_path / "provenance.json").read_text())["training"]
    assert settings["model_init_kwargs"]["dtype"] == "bfloat16"


def test_command_line_overrides_the_config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("task: math\nmax-quality-drop: 0.05\nseed: 3\nnum_examples: 3\n")  # either spelling
    arguments, config = parse([f"--config={path}", "--seed", "4"])
    assert (arguments.task, arguments.num_examples, config.max_quality_drop, config.seed) == ("math", 3, 0.05, 4)
    path.write_text("task: math\nmax_qualty_drop: 0.05\n")
    with pytest.raises(ValueError, match="max_qualty_drop"):
        parse(["--config", str(path)])


def test_held_out_rows_are_never_trained_on(tmp_path):
    """Catches a head that is selected on its own training prompts if both come from one file or one split."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}", "answer": f"#### {n}"}) + "\n" for n in range(10)))
    arguments = TrainOptions(task="gsm8k", data_file=str(path), num_examples=8, num_eval_examples=4)
    train_rows, eval_rows = load_rows(arguments, get_task("gsm8k"), seed=0, held_out=True)
    assert not {row["question"] for row in train_rows} & {row["question"] for row in eval_rows}
    assert (len(train_rows), len(eval_rows)) == (6, 4)
    arguments.eval_data_file = str(tmp_path / "." / "data.jsonl")
    train_rows, eval_rows = load_rows(arguments, get_task("gsm8k"), seed=0, held_out=True)
    assert not {row["question"] for row in train_rows} & {row["question"] for row in eval_rows}
    arguments.eval_data_file = None
    arguments.num_examples = 6  # the whole file
    _, eval_rows = load_rows(arguments, get_task("gsm8k"), seed=0, held_out=True)
    assert [row["question"] for row in eval_rows] != ["Q6", "Q7", "Q8", "Q9"]  # a file may be sorted
    arguments = TrainOptions(task="math", num_examples=20, num_eval_examples=20)
    train_rows, eval_rows = load_rows(arguments, get_task("math"), seed=0, held_out=True)
    assert not {row["prompt"] for row in train_rows} & {row["prompt"] for row in eval_rows}


def test_held_out_rows_without_a_validation_split(monkeypatch):
    """Catches the default of a task that has no validation split, and an error that names the training prompts."""
    asked = []

    def read(task, split, n, seed, data_file):
        asked.append((split, n))
        return [{"question": f"Q{number}", "answer": "#### 1"} for number in range(n)]

    monkeypatch.setattr("hf_diversed.cli.train.read_records", read)
    options = TrainOptions(task="gsm8k", num_examples=8, num_eval_examples=4)
    train_rows, eval_rows = load_rows(options, get_task("gsm8k"), seed=0, held_out=True)
    assert (asked, len(train_rows), len(eval_rows)) == ([("train", 12)], 8, 4)
    monkeypatch.undo()
    options = TrainOptions(task="math", num_examples=1, num_eval_examples=10**6)
    with pytest.raises(ValueError, match="`num_eval_examples` must be at most"):
        load_rows(options, get_task("math"), seed=0, held_out=True)


OURS = [*dataclasses.fields(TrainOptions), *dataclasses.fields(TrainingSettings)]


def test_help_explains_every_option_of_ours():
    """Catches an option of ours without a help text, and transformers' hundred options listed before ours."""
    result = succeed("train", "--help")
    shown = " ".join(result.stdout.split())
    for item in OURS:
        assert f"--{item.name.replace('_', '-')} " in shown
        assert item.metadata["help"][:30] in shown
    assert "--adam-beta1" not in shown
    assert "--help-all" in shown
    assert not re.search("--[a-z]+_", shown)


def test_flags_with_values():
    """Catches `--chat true`, which scripts of transformers' users contain, as an unknown argument."""
    argv = ["--task", "math", "--chat", "true", "--overwrite=False", "--resume", "--token-features", "true"]
    options, config = parse(argv)
    assert (options.chat, options.overwrite, options.resume) == (True, False, True)
    assert config.token_features


def test_debug_of_ours_and_of_the_trainers():
    """Catches a flag that hides upstream's option of that name."""
    assert without_debug(["--task", "math", "--debug"]) == (["--task", "math"], True)
    assert without_debug(["--debug", "--task", "math"]) == (["--task", "math"], True)
    argv = ["--debug", "underflow_overflow"]
    assert without_debug(argv) == (argv, False)
