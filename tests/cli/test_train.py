"""`hf-diversed train`: recipes, rows, and a run on the embedded pair."""

import json
from pathlib import Path

import pytest
import yaml

from hf_diversed import DiversedHead
from hf_diversed.cli.train import TrainArguments, build_trainer, load_rows, parse
from hf_diversed.tasks import get_task
from tests.commands import refused, succeed


RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*.yaml"))
TINY = {"max-steps": 2, "num-iterations": 2, "per-device-train-batch-size": 4, "num-generations": 2, "eval-steps": 2}
TINY |= {"save-steps": 2, "num-examples": 2, "num-eval-examples": 2, "reference-generations": 1, "logging-steps": 1}
TINY |= {"max-completion-length": 6, "disable-tqdm": "true", "report-to": "none", "use-cpu": "true"}
TINY = [f"--{name}={value}" for name, value in TINY.items()]


def test_a_run_and_its_continuation(tmp_path):
    """Catches logs on standard output, which scripts read, a lost head, and a run that replaces an earlier one."""
    folder = tmp_path / "head"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"task: math\ntoken_features: true\noutput_dir: {folder}\n")
    result = succeed("train", "--config", recipe, *TINY)
    assert result.stdout == f"{folder}\n"
    assert "2 updates on 1 batches of 4 rollouts" in result.stderr
    assert "'loss'" in result.stderr
    head = DiversedHead.from_pretrained(folder)
    assert (head.config.task, head.config.token_features) == ("math", True)
    record = json.loads((folder / "provenance.json").read_text())
    assert record["options"]["num_examples"] == 2
    refused("holds an earlier run: pass --resume-from-checkpoint true", "train", "--config", recipe, *TINY)
    longer = ("--max-steps", "4", "--resume-from-checkpoint", "true")
    succeed("train", "--config", recipe, *TINY, *longer)
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == 4


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_parses(path):
    """Catches an option that was renamed, a value out of range, and a recipe of another task."""
    arguments, config = parse([], path)
    assert arguments.task == path.stem
    assert config.output_dir == f"head-{path.stem}"
    assert (config.top_k, config.top_p, config.temperature, config.num_assistant_tokens) == (0, 1.0, 1.0, 5)
    written = yaml.safe_load(path.read_text())
    settings = {name: getattr(arguments if hasattr(arguments, name) else config, name) for name in written}
    assert settings == written


def test_recipes_are_read_like_the_command_line(tmp_path):
    """Catches a value of the recipe that wins over the command line, and one of another type than its option, which
    would fail after the models are loaded."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "task: math\nmax_quality_drop: 0.05\nseed: 3\nlearning_rate: 1e-3\nnum_examples: 3\n"
        "reward_funcs: [task:math, task:code]\nreward_weights: [-1, 0.5]\nhub_token: null\n"
    )
    words = ["--seed", "4", "--chat", "true", "--num_examples", "5", "--token-features", "--reward_weights", "2", "3"]
    arguments, config = parse(words, path)
    assert (arguments.task, arguments.num_examples, arguments.chat) == ("math", 5, True)
    assert (config.max_quality_drop, config.seed, config.learning_rate, config.token_features) == (0.05, 4, 1e-3, True)
    assert (arguments.reward_funcs, config.reward_weights) == (["task:math", "task:code"], [2.0, 3.0])
    for written, words in (
        ("task:", "required: --task"),
        ("- task", "one `name: value` per line"),
        ("task: math\nmax_qualty_drop: 0.05", "max_qualty_drop"),
        ("task: math\nseed: [1, 2]", "no such option or argument: 2"),
        ("task: math\nseed: x", "invalid int value"),
        ("task:\tmath: 3", "run.yaml is not valid YAML"),
        ("task: math\ndtype: fp8", "argument --dtype: invalid choice: 'fp8'"),
    ):
        path.write_text(written)
        with pytest.raises(ValueError, match=words):
            parse([], path)


def test_held_out_rows_are_never_trained_on(tmp_path):
    """Catches a head that is selected on its own training prompts if both come from one file or one split."""
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{n}", "answer": f"#### {n}"}) + "\n" for n in range(10)))
    arguments = TrainArguments(task="gsm8k", data_file=str(path), num_examples=8, num_eval_examples=4)
    for arguments.eval_data_file in (None, str(tmp_path / "." / "data.jsonl")):
        rows, held_out = load_rows(arguments, get_task("gsm8k"), seed=0, held_out=True)
        assert not {row["question"] for row in rows} & {row["question"] for row in held_out}
        assert (len(rows), len(held_out)) == (6, 4)
    assert [row["question"] for row in held_out] != ["Q6", "Q7", "Q8", "Q9"]  # a file may be sorted
    arguments.eval_split = "test"
    with pytest.raises(ValueError, match="--eval-split cannot be combined with --data-file"):
        load_rows(arguments, get_task("gsm8k"), seed=0, held_out=True)
    arguments = TrainArguments(task="math", num_examples=20, num_eval_examples=20)
    rows, held_out = load_rows(arguments, get_task("math"), seed=0, held_out=True)
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in held_out}


def test_rollouts_are_as_long_as_the_answers_of_the_task(tmp_path):
    """Catches rollouts of a task with long answers that are all cut off."""
    few = ["--num-examples", "2", "--num-eval-examples", "2", "--output-dir", str(tmp_path)]
    for task, length in (("math", 128), ("summary", 64)):
        assert build_trainer(*parse(["--task", task, *few])).args.max_completion_length == length
